-- The payload is of no more use: no retry is possible.
local function drop_payload(id, bytes)
  if bytes and call('DEL', key_payload(id)) == 1 then call('HINCRBY', key_pool(), 'bytes', 0 - num(bytes)) end
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

-- Settle an attempt whose slot was released: charge what it used beyond the estimate, learn from it.
-- `input`, `output`: tokens, < 0 unknown; what a worker says is believed up to 4,194,304, and learned from up to 131,072.
-- `learn_ms`: how long it ran, false unless it was completed.
local function settle(t, input, output, learn_ms)
  local q, m = t.q, t.m
  local model = key_model(m)
  local s = call('HMGET', model, 'cost', 'v:' .. q, 'out', 'ms')
  local in_tokens, known = s[1] ~= 'requests', input >= 0 and output >= 0
  close_account(t, in_tokens and known and min(input, 4194304) + 2 * min(output, 4194304) or nil)
  if learn_ms then
    local mean_out, mean_ms = num(s[3]), num(s[4])
    mean_ms = mean_ms == 0 and max(learn_ms, 1) or mean_ms + 0.1 * (learn_ms - mean_ms)
    if in_tokens and known then
      local mean = key_mean(m, t.u)
      local own = num(call('GET', mean))
      output = min(output, 131072)
      own = own == 0 and max(output, 1) or own + 0.3 * (output - own)
      mean_out = mean_out == 0 and max(output, 1) or mean_out + 0.05 * (output - mean_out)
      call('SET', mean, string.format('%.2f', own), 'EX', 3600)
    end
    call('HSET', model, 'out', string.format('%.2f', mean_out), 'ms', string.format('%.2f', mean_ms))
  end
  forget_idle_flows(q, m, num(s[2]))
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
