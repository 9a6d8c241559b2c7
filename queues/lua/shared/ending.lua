-- The payload is of no more use: no retry is possible.
local function drop_payload(id, bytes)
  if bytes and call('DEL', key_payload(id)) == 1 then call('HINCRBY', key_pool(), 'bytes', -num(bytes)) end
end

-- Record and log of an ended task go when its time is over. While it holds a slot it has no end: the sweep needs its record.
local function expire(id, keep)
  keep = floor(max(keep, 1000))
  call('PEXPIRE', key_task(id), keep)
  call('PEXPIRE', key_log(id), keep)
end

-- Give a task's slot back. True when it held one, which is once per attempt.
local function release(id, t)
  local held = call('ZREM', key_slots(t.m), id) == 1
  call('ZREM', key_look(), id)
  if not held then return false end
  local busy = key_busy(t.q, t.m, t.u)
  call('SREM', busy, id)
  if t.ed then expire(id, num(t.ed) + num(t.tl) - NOW) end
  return true
end

-- Close the account of an attempt whose slot was released: charge what it used beyond the estimate, learn from it.
-- `input`, `output`: tokens, < 0 unknown; `learn_ms`: how long it ran, false unless it was completed.
local function settle(t, input, output, learn_ms)
  local q, m, u = t.q, t.m, t.u
  local model, lifts = key_model(m), key_lifts(q, m)
  local s = call('HMGET', model, 'cost', 'out', 'ms', 'S:' .. q, 'L:' .. q, 'v:' .. q)
  local mean_out, mean_ms = num(s[2]), num(s[3])
  local lane_tag
  if s[1] ~= 'requests' and (input >= 0 or output >= 0) then
    if output < 0 then output = (num(t.ch) - num(t.ei)) / 2 end
    if input < 0 then input = num(t.ei) end
    local used = min(input + 2 * output, 16777216)
    if used ~= num(t.ch) then lane_tag = charge(t, used - num(t.ch), num(s[4]), num(s[5])) end
    if learn_ms then
      local mean = key_mean(m, u)
      local old = num(call('GET', mean))
      call('SET', mean, old == 0 and max(output, 1) or old + 0.3 * (output - old), 'EX', 3600)
      mean_out = mean_out == 0 and max(output, 1) or mean_out + 0.05 * (output - mean_out)
    end
  end
  if learn_ms then mean_ms = mean_ms == 0 and max(learn_ms, 1) or mean_ms + 0.1 * (learn_ms - mean_ms) end
  if lane_tag then
    call('HSET', model, 'out', mean_out, 'ms', mean_ms, 'S:' .. q, lane_tag)
  elseif learn_ms then
    call('HSET', model, 'out', mean_out, 'ms', mean_ms)
  end
  if call('EXISTS', key_busy(q, m, u)) == 0 then call('ZREM', lifts, u) end
  forget_idle_flows(q, m, num(s[6]))
end

-- Take back the whole charge of an attempt that will not count.
local function refund(t)
  local q, m = t.q, t.m
  local s = call('HMGET', key_model(m), 'S:' .. q, 'L:' .. q)
  local lane_tag = charge(t, -num(t.ch), num(s[1]), num(s[2]))
  if lane_tag then call('HSET', key_model(m), 'S:' .. q, lane_tag) end
  if call('EXISTS', key_busy(q, m, t.u)) == 0 then call('ZREM', key_lifts(q, m), t.u) end
end

-- End a task: the only writer of terminal events and final states. `kind` and `data` are the terminal event, `nonce` names the
-- call, if it may be repeated. The caller has taken the task out of its lane or released its slot, or leaves the slot
-- `stopping` until `stop_until`. Returns the terminal event's id.
local function end_task(id, t, state, kind, data, code, nonce, except, stop_until)
  call('ZREM', key_look(), id)
  drop_payload(id, t.pb)
  local attempt, seq = max(num(t.at), 1), num(t.sq) + 1
  local event_id = attempt .. '-' .. seq
  call('XADD', key_log(id), event_id, 'type', kind, 'data', data)
  call('HSET', key_task(id), 'st', state, 'ed', NOW, 'sq', seq, 'co', code, 'fn', nonce)
  t.st, t.sq, t.ed = state, seq, NOW
  if stop_until then
    call('ZADD', key_slots(t.m), stop_until, id)
    call('ZADD', key_look(), stop_until, id)
  else
    expire(id, num(t.tl))
  end
  call('HINCRBY', key_pool(), state, 1)
  publish_event(t.rd, id, event_id, kind, data, except)
  return event_id
end

-- Ask the owner of a running task to stop its worker.
local function tell_owner(id, t, why)
  if t.ow then tell(t.ow, 's\n' .. id .. '\n' .. t.at .. '\n' .. why) end
end
