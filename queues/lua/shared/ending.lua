-- The payload is of no more use: no retry is possible.
local function drop_payload(id, t)
  local bytes = num(t.pb)
  if bytes > 0 then
    call('DEL', key_payload(id))
    call('HINCRBY', key_pool(), 'bytes', -bytes)
    call('HDEL', key_task(id), 'pb')
    t.pb = nil
  end
end

-- Give a task's slot back. True when it held one.
local function release(id, t)
  if call('ZREM', key_slots(t.m), id) == 0 then return false end
  call('ZREM', key_look(), id)
  call('SREM', key_busy(t.q, t.m, t.u), id)
  return true
end

-- Settle the charge of dispatch with what was used; `input` or `output` < 0: unknown, the estimate stands.
local function settle(id, t, input, output)
  if not t.ch then return end
  if input >= 0 or output >= 0 then
    local unit = call('HGET', key_model(t.m), 'cost')
    if unit ~= 'requests' then
      local used = max(input, 0) + 2 * max(output, 0)
      charge(t, used - tonumber(t.ch))
      local mean = key_mean(t.m, t.u)
      local old = num(call('GET', mean))
      call('SET', mean, old == 0 and max(output, 1) or old + 0.3 * (output - old), 'EX', 3600)
      local model = key_model(t.m)
      local all = num(call('HGET', model, 'out'))
      call('HSET', model, 'out', all == 0 and max(output, 1) or all + 0.05 * (output - all))
    end
  end
  call('HDEL', key_task(id), 'ch')
  t.ch = nil
  forget_idle_flows(t.q, t.m)
end

-- Take back the whole charge of an attempt that will not count.
local function refund(id, t)
  if not t.ch then return end
  charge(t, -tonumber(t.ch))
  call('HDEL', key_task(id), 'ch')
  t.ch = nil
end

-- End a task: the only writer of terminal events and final states. `kind` and `data` are the terminal event. The caller has
-- taken the task out of its lane or released its slot, or leaves the slot `stopping` until `stop_until`.
-- Returns the terminal event's id.
local function end_task(id, t, state, kind, data, code, except, stop_until)
  if stop_until then
    call('ZADD', key_slots(t.m), stop_until, id)
    call('ZADD', key_look(), stop_until, id)
  else
    call('ZREM', key_look(), id)
  end
  drop_payload(id, t)
  local attempt, seq = max(num(t.at), 1), num(t.sq) + 1
  local event_id = attempt .. '-' .. seq
  local log = key_log(id)
  call('XADD', log, event_id, 'type', kind, 'data', data)
  local keep = max(num(t.tl), 1000)
  if stop_until then keep = max(keep, stop_until - NOW + 60000) end
  local key = key_task(id)
  call('HSET', key, 'st', state, 'ed', int(NOW), 'sq', seq, 'co', code)
  call('PEXPIRE', key, int(keep))
  call('PEXPIRE', log, int(keep))
  call('HINCRBY', key_pool(), state, 1)
  t.st, t.sq, t.ed = state, tostring(seq), int(NOW)
  publish_event(t.rd, id, event_id, kind, data, except)
  return event_id
end

-- Ask the owner of a running task to stop its worker.
local function tell_owner(id, t, why, except)
  if t.ow and t.ow ~= except then tell(t.ow, 's\n' .. id .. '\n' .. t.at .. '\n' .. why) end
end
