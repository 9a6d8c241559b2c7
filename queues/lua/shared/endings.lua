local drop_payload, unpark, release, log_last_events, settle, refund, settle_over, end_task, account_of_end, end_waiting, request_stop
do
-- The payload is of no more use: no retry is possible. `u`: its user, if the caller knows. `ar`: the field of the
-- record; where it says so, the archive shall have the payload.
function drop_payload(id, bytes, ar, u)
  local payload, dropped = keys.payload(id), 0
  if bytes and ar and string.sub(ar, -1) == 'r' then
    dropped = call('EXISTS', payload)
    if dropped == 1 and call('EXISTS', keys.request(id)) == 1 then -- as it came; this one is another (repairs.lua)
      call('DEL', payload)
    elseif dropped == 1 then
      call('RENAME', payload, keys.request(id))
    end
  elseif bytes then
    dropped = call('DEL', payload)
  end
  if dropped == 1 and bytes ~= '0' then
    call('HINCRBY', keys.pool(), 'bytes', '-' .. bytes)
    if tonumber(bytes) >= LARGE_BODY then
      u = u or call('HGET', keys.task(id), 'user')
      if call('HINCRBY', keys.bulk(), u, '-' .. bytes) <= 0 then call('HDEL', keys.bulk(), u) end
    end
  end
end

-- Record and log of an ended task go when its time is over, and count as retained until then (retention.lua). While it holds a
-- slot it has no end: the sweep needs its record. What the archive shall have is kept for as long as it would keep it, or until it
-- has it (confirm_archived.lua); what an idempotency key names, for as long as that.
local function expire(id, t, keep)
  keep = math.max(keep, 1000)
  if t.archive then keep = math.max(keep, num(string.match(t.archive, '%d+'))) end
  if t.idempotency then keep = math.max(keep, retain_name(id, t)) end
  local text, log = string.format('%d', keep), keys.log(id)
  call('PEXPIRE', keys.task(id), text)
  call('PEXPIRE', log, text)
  local bytes = call('MEMORY', 'USAGE', log) + call('MEMORY', 'USAGE', keys.task(id), 'SAMPLES', '0')
  if t.stage and call('PEXPIRE', keys.chain(id), text) == 1 then bytes = bytes + call('MEMORY', 'USAGE', keys.chain(id), 'SAMPLES', '0') end
  bytes = bytes + 256 -- of its places in lines, about
  if t.archive then
    if call('PEXPIRE', keys.request(id), text) == 1 then bytes = bytes + call('MEMORY', 'USAGE', keys.request(id)) end
    call('XADD', keys.archive(), '*', 'task', id)
  end
  call('RPUSH', keys.endings(), string.format('%s %d %d %d', id, bytes, NOW, NOW + keep))
  if t.archive or t.keep_after_read then call('HSET', keys.task(id), 'stored_bytes', string.format('%d', bytes)) end
end

-- Parked flows of a user return to their lines, if he may run one more.
function unpark(m, u)
  local cap = num(call('HGET', keys.model(m), 'max_running_per_user'))
  if cap > 0 and count_of_user(m, u) >= cap then return end
  for _, q in ipairs(call('SMEMBERS', keys.queues())) do
    local parked = keys.parked(q, m)
    if call('ZSCORE', parked, u) then
      forget_at_limit(q, m, u)
      flow_comes(q, m, u, parked)
    end
  end
end

-- The same when a task of the user has ended and its account is closed: only then is it known where the flow stands. So do
-- others that its key or user holds back.
local function unpark_after(t)
  if string.sub(t.account, -1) == '1' then unpark(t.model, t.user) end
  unpark_for(t, t.model)
end

-- A task has ended and holds no slot; nor does, of a chain, any of its parts: the chain that ended before its last part stopped is
-- closed with that.
local function close(id, t, used)
  expire(id, t, num(t.ended_at) + num(t.ttl) - NOW)
  record_usage(id, t, used)
  if t.chain and call('HINCRBY', keys.chain(t.chain), 'live', '-1') == 0 then
    local chain = load(t.chain)
    if chain then close(t.chain, chain) end
  end
end

-- Give a task's slot back. True when it held one, which is once per attempt: its account is then to be closed, by `settle` or
-- `refund`. `used`: what its worker says, of a task that has ended before, as `record_usage` wants it.
function release(id, t, used)
  local held = call('ZREM', keys.slots(t.model), id) == 1
  call('ZREM', keys.due(), id)
  if not held then return false end
  call('SREM', keys.busy(t.queue, t.model, t.user), id)
  if t.probe then upstreams.end_probe(id, t) end
  if string.sub(t.account, -1) == '1' then
    call('SREM', keys.running(t.queue, t.model), id)
    call('SREM', keys.load(t.queue), id)
    windows.note(t.model, id, t.epoch, true)
  end
  if t.limits then
    for _, of in ipairs(running_limits(t)) do call('SREM', keys.runs(of[1]), id) end
  end
  if t.ended_at then close(id, t, used) end
  return true
end

-- Log the last events of an attempt, from number `seq` on, which its log does not hold yet: pairs of type and data among `args`. Returns the
-- epoch of what follows them, if that has its writer's next number: no reader saw another event there.
function log_last_events(id, t, seq, args, first, last, replica)
  local top = num(t.top_seq)
  for i = first, last, 2 do
    if seq > top then
      local event_id = t.epoch .. '-' .. whole(seq)
      call('XADD', keys.log(id), event_id, 'type', args[i], 'data', args[i + 1])
      publish_event(t.readers, id, event_id, args[i], args[i + 1], replica)
      if not t.first_output_at and args[i] == 'chunk' then t.first_output_at = NOW_TEXT end -- its first output comes with its end
      top = seq
    end
    seq = seq + 1
  end
  t.top_seq = whole(top)
  return seq == top + 1 and t.epoch or nil
end

-- A running mean, as it is stored: in hundredths, rounded.
local function mean_after(stored, value, share)
  local mean = num(stored)
  mean = mean == 0 and math.max(value, 1) or mean + share * (value - mean)
  local hundredths = math.floor(mean * 100 + 0.5)
  return string.format('%d.%02d', hundredths / 100, hundredths % 100)
end

-- What an attempt used counts for its model's pace, too: what it took beyond (or less than) the `counted` tokens that were
-- expected. Is it paced by tokens?
local function settle_pace(t, counted, tokens_used)
  local more = tokens_used - counted
  local s = call('HMGET', keys.model(t.model), 'tokens_per_minute', 'tokens_at')
  local tpm = num(s[1])
  if tpm == 0 or more == 0 then return tpm > 0 end
  call('HSET', keys.model(t.model), 'tokens_at', whole(math.max(num(s[2]), US) + 60000000 * more / tpm))
  local second = more > 0 and math.floor(US / 1000000) or math.floor(num(t.granted_at) / 1000)
  if more > 0 or call('HEXISTS', keys.spent(t.model), string.format('%d', second)) == 1 then
    call('HINCRBY', keys.spent(t.model), string.format('%d', second), whole(more))
    call('PEXPIRE', keys.spent(t.model), '120000')
  end
  return true
end

-- Settle an attempt whose slot was released, the last of its task: charge what it used beyond the estimate, learn from it.
-- `goes_on`: it is not the last one: its answer is asked for again, or it was a stage, and others follow.
-- `input`, `output`: tokens, < 0 unknown; what a worker says is believed up to 4,194,304, and learned from up to 131,072.
-- `completed`: it ran to its end. `idle_ms`: for so long it held its slot before anything began (a permit, until it was used): that
-- is no part of how long it took, and is charged as the number of requests that others could have made. Returns its lane's books as they were.
local MAX_IDLE = 1000 -- of those
function settle(t, input, output, completed, goes_on, idle_ms)
  local q, m = t.queue, t.model
  local books = read_books(m, q)
  local unit, known, held_ms, used = books.unit, input >= 0 and output >= 0, math.max(NOW - num(t.granted_at), 0), nil
  idle_ms = math.min(idle_ms or 0, held_ms)
  local ran_ms = held_ms - idle_ms
  if unit == 'slot_seconds' then
    used = held_ms
  elseif unit == 'requests' then
    used = 1
    if idle_ms > 0 and num(books.mean_ms) > 0 then used = 1 + math.min(math.floor(idle_ms / num(books.mean_ms)), MAX_IDLE) end
  elseif known then
    used = math.min(input, 4194304) + 2 * math.min(output, 4194304)
  end
  if t.limits and known then settle_limits(t, math.min(input, 4194304) + math.min(output, 4194304), goes_on) end
  if t.chain and known then -- its chain was charged at its submission
    local of_chain = { limits = call('HGET', keys.task(t.chain), 'limits'), user = t.user }
    if of_chain.limits then settle_limits(of_chain, math.min(input, 4194304) + math.min(output, 4194304), true) end
  end
  local changed, counted = close_account(t, used, books)
  local paced = known and counted > 0 and settle_pace(t, counted, math.min(input, 4194304) + math.min(output, 4194304))
  if completed then
    if known then -- the longest recent answer: it fades with shorter ones
      output = math.min(output, 131072)
      local top = output > books.top and output or books.top - math.floor((books.top - output) / 64)
      if top ~= books.top then
        changed[#changed + 1] = 'longest_output'
        changed[#changed + 1] = whole(top)
      end
    end
    if known and (unit ~= 'requests' or paced) then
      local mean = keys.mean_output(m, t.user)
      call('SET', mean, mean_after(call('GET', mean), output, 0.3), 'EX', '3600')
      changed[#changed + 1] = 'mean_output'
      changed[#changed + 1] = mean_after(books.mean_output, output, 0.05)
      changed[#changed + 1] = 'mean_speed'
      changed[#changed + 1] = mean_after(books.pace, math.min(output * 1000 / math.max(ran_ms, 1), 1000), 0.1)
    end
    if unit == 'slot_seconds' then
      local span = keys.mean_ms(m, t.user)
      call('SET', span, mean_after(call('GET', span), ran_ms, 0.3), 'EX', '3600')
    end
    changed[#changed + 1] = 'mean_ms'
    changed[#changed + 1] = mean_after(books.mean_ms, ran_ms, 0.1)
  end
  if #changed > 0 then call('HSET', keys.model(m), unpack(changed)) end
  unpark_after(t)
  forget_idle_flows(q, m, books)
  return books
end

-- A task that stands in no line and holds no slot ends without an attempt to settle: what it was charged to limits comes back, and of a
-- chain with a stage that has begun the tokens alone.
function settle_over(id, t)
  if not t.limits then return end
  local begun = t.stage_entered_at or t.parts and num(call('HGET', keys.chain(id), 'begun')) > 0
  settle_limits(t, begun and 0 or nil)
end

-- Refund all that an attempt was charged.
function refund(t)
  local changed = close_account(t, 0, read_books(t.model, t.queue))
  if #changed > 0 then call('HSET', keys.model(t.model), unpack(changed)) end
  unpark_after(t)
end

-- End a task: the only writer of terminal events and final states. `kind` and `data` are the terminal event, `nonce` names the
-- call, if it may be repeated. The caller has taken the task out of its lane or released its slot, or leaves the slot
-- `stopping` until `stop_until`. Returns the terminal event's id, which has an epoch of its own: the store may have lost what
-- the attempt's writer logged behind the log's end, and readers have seen it. Only that writer knows better, and names its `epoch`.
-- `used`: as `record_usage` wants it. While the slot is `stopping` the task still uses tokens: it is recorded when that is over. With a
-- chain its parts end, and with a part that has not completed its chain (stages.lua). `t.unsaved`, no field of the record: further
-- fields to be stored.
function end_task(id, t, state, kind, data, code, nonce, except, stop_until, epoch, used)
  drop_payload(id, t.payload_bytes, t.archive, t.user)
  if t.idempotency and state == 'failed' and not t.stage_entered_at and releases_name(t, code, data) then release_name(id, t) end
  local seq = string.format('%d', num(t.top_seq) + 1)
  local event_id = (epoch or new_epoch(t)) .. '-' .. seq
  call('XADD', keys.log(id), event_id, 'type', kind, 'data', data)
  call('HSET', keys.task(id), 'state', state, 'ended_at', NOW_TEXT, 'top_seq', seq, 'end_id', event_id, 'code', code, 'end_nonce', nonce,
    unpack(t.unsaved or {}))
  t.state, t.top_seq, t.ended_at, t.code = state, seq, NOW_TEXT, code
  if t.stage and not t.chain then chains.forget_plan(id, t) end
  local parts_run = t.parts and chains.end_parts(id, t)
  if stop_until then
    call('ZADD', keys.slots(t.model), whole(stop_until), id)
    call('ZADD', keys.due(), whole(stop_until), id)
    if used and (num(used[1]) >= 0 or num(used[2]) >= 0) then call('HSET', keys.task(id), 'usage', table.concat(used, ' ')) end
  elseif not parts_run then
    close(id, t, used)
  end
  if not t.chain then call('HINCRBY', keys.pool(), state, '1') end
  publish_event(t.readers, id, event_id, kind, data, except)
  if t.chain and state ~= 'completed' then chains.fail_with(t, state, kind, data, code) end
  return event_id
end

-- How a task of this table came to its state, for those who count: queue, model, type, state, code, ms since its submission, ms
-- since its last grant (-1: it was not running); and whose it was: id, request, user, model that was asked for, worker, attempt.
function account_of_end(t, id)
  return {
    t.queue, t.model, t.type or '', t.state, t.code or '', NOW - num(t.enqueued_at), t.granted_at and NOW - num(t.granted_at) or -1,
    id, t.request_id or '', t.user, t.requested_model or t.model, t.worker or '', t.attempt or '0',
  }
end

-- End a task that waits.
function end_waiting(id, t, state, kind, data, code)
  call('ZREM', keys.due(), id)
  dequeue(id, t)
  settle_over(id, t)
  unpark_for(t)
  return end_task(id, t, state, kind, data, code, '')
end

-- Ask the owner of a running task to stop its worker.
function request_stop(id, t, why)
  if t.owner then publish(t.owner, 'stop\n' .. id .. '\n' .. t.epoch .. '\n' .. why) end
end
end
