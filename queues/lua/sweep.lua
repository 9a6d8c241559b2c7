-- sweep: end what is out of time, take back what its holder lost, repeat wake-ups that may have been lost
-- uses: waking lanes ending retrying
-- KEYS[1]  prefix of the pool
-- ARGV[1]  lease length, ms
-- ARGV[2]  grace of a stopping task, ms
-- ARGV[3]  replica
-- ARGV[4…] rest fragment and code of each end: timeout, queue timeout, worker lost, no worker; rest of `cancelled`
-- returns  {next instant to sweep at (ms), now (ms), tasks looked at}
-- Time that Redis was down is not lease time: after a gap all leases move by the gap and nothing ends in that pass.
local lease, grace, replica = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local timeout = { rest = ARGV[4], code = ARGV[5] }
local queue_timeout = { rest = ARGV[6], code = ARGV[7] }
local lost = { rest = ARGV[8], code = ARGV[9] }
local no_worker = { rest = ARGV[10], code = ARGV[11] }
local left_rest = ARGV[12]
local failures = { lost = lost, no_worker = no_worker, timeout = timeout }
local look = key_look()

local last = num(call('HGET', key_pool(), 'swept'))
call('HSET', key_pool(), 'swept', int(NOW))
if last > 0 and NOW - last > lease / 3 then
  local gap = NOW - last
  for _, model in ipairs(call('ZRANGE', key_models(), 0, -1)) do
    local held = call('ZRANGE', key_slots(model), 0, -1, 'WITHSCORES')
    for i = 1, #held, 2 do
      local id, lease_end = held[i], tonumber(held[i + 1]) + gap
      call('ZADD', key_slots(model), lease_end, id)
      local f = call('HMGET', key_task(id), 'st', 'xd', 'lv')
      if f[3] then
        f[3] = int(num(f[3]) + gap)
        call('HSET', key_task(id), 'lv', f[3])
      end
      call('ZADD', look, f[1] == 'executing' and run_instant({ xd = f[2], lv = f[3] }, lease_end) or lease_end, id)
    end
  end
  for _, key in ipairs({ key_replicas(), key_offered() }) do
    local members = call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #members, 2 do
      call('ZADD', key, tonumber(members[i + 1]) + gap, members[i])
      if key == key_offered() then
        local offers = key_offers(members[i])
        local replicas = call('ZRANGE', offers, 0, -1, 'WITHSCORES')
        for k = 1, #replicas, 2 do call('ZADD', offers, tonumber(replicas[k + 1]) + gap, replicas[k]) end
      end
    end
  end
  return { int(NOW + 1000), int(NOW), 0 }
end

local function fail(id, t, why, stop_until)
  end_task(id, t, 'failed', 'error', event_data(id, why.rest), why.code, nil, stop_until)
end

local function passed(instant) return num(instant) > 0 and num(instant) <= NOW end

local due = call('ZRANGEBYSCORE', look, '-inf', int(NOW), 'LIMIT', 0, 100)
local touched = {}
for _, id in ipairs(due) do
  local t = load(id)
  if not t or t.st == 'gone' then
    call('ZREM', look, id)
  elseif t.st == 'queued' then
    if passed(t.lv) or passed(t.wd) or passed(t.dl) then
      dequeue(id, t)
      if passed(t.dl) then
        fail(id, t, timeout)
      elseif passed(t.wd) then
        fail(id, t, queue_timeout)
      else
        end_task(id, t, 'cancelled', 'cancelled', event_data(id, left_rest), '')
      end
      forget_idle_flows(t.q, t.m)
    else
      call('ZADD', look, wait_instant(t), id)
    end
  else
    local lease_end = num(call('ZSCORE', key_slots(t.m), id))
    touched[t.m] = true
    if t.st ~= 'executing' then
      if lease_end <= NOW then
        release(id, t)
        settle(id, t, -1, -1)
      else
        call('ZADD', look, lease_end, id)
      end
    elseif passed(t.xd) then
      local stop_until = lease_end > NOW and NOW + grace or nil
      if not stop_until then release(id, t) end
      fail(id, t, timeout, stop_until)
      tell_owner(id, t, 'timeout')
    elseif lease_end <= NOW then
      put_back(id, t, 'lease over', 'lost', failures)
    elseif passed(t.lv) then
      end_task(id, t, 'cancelled', 'cancelled', event_data(id, left_rest), '', nil, NOW + grace)
      tell_owner(id, t, 'client')
    else
      call('ZADD', look, run_instant(t, lease_end), id)
    end
  end
end

for model in pairs(touched) do wake(model) end
if NOW - num(call('HGET', key_pool(), 'woke')) >= 900 then
  call('HSET', key_pool(), 'woke', int(NOW))
  for _, model in ipairs(call('ZRANGE', key_backlog(), 0, 99)) do
    if has_free_lease(model) then
      for _, offered in ipairs({ model, '*' }) do
        for _, other in ipairs(call('ZRANGEBYSCORE', key_offers(offered), '(' .. int(NOW), '+inf', 'LIMIT', 0, 16)) do
          tell(other, 'r\n' .. model)
        end
      end
    end
  end
end

for _, key in ipairs({ key_replicas(), key_offered() }) do
  for _, member in ipairs(call('ZRANGEBYSCORE', key, '-inf', int(NOW - 60000), 'LIMIT', 0, 20)) do
    call('ZREM', key, member)
    if key == key_offered() then call('DEL', key_offers(member), key_idle(member)) end
  end
end
for _, model in ipairs(call('ZRANGEBYSCORE', key_models(), '-inf', int(NOW - 3600000), 'LIMIT', 0, 20)) do
  if call('EXISTS', key_lanes(model), key_slots(model)) > 0 then
    call('ZADD', key_models(), NOW, model)
  else
    for _, q in ipairs(call('SMEMBERS', key_queues())) do call('DEL', key_debts(q, model)) end
    if not call('HGET', key_model(model), 'fixed') then call('DEL', key_model(model)) end
    call('ZREM', key_models(), model)
  end
end

local head = call('ZRANGE', look, 0, 0, 'WITHSCORES')
local next_at = NOW + 1000
if head[2] then next_at = max(min(next_at, tonumber(head[2])), NOW) end
return { int(next_at), int(NOW), #due }
