-- sweep: end what is out of time, take back what its holder lost, repeat wake-ups that may have been lost
-- KEYS[1]  prefix of the pool
-- ARGV[1]  lease length, ms
-- ARGV[2]  grace of a stopping task, ms
-- ARGV[3…] rest fragment and code of each end: timeout, queue timeout, worker lost, no worker, cancelled as its readers left;
--          then the bytes that ended tasks may take
-- returns  {next instant to sweep at (ms), now (ms), tasks looked at, account (ending.lua) of each that ended or went back,
--          ended tasks dropped before their time}
-- In time that Redis was away nobody could renew anything. Sweeps are due once a second, so when one is late by more than half a
-- second, what must be renewed moves by all of the gap but half a second: owners have as long to come back, and yet each pass
-- brings the end of what nobody renews nearer. Whatever is due then ends as ever.
local lease, grace = tonumber(ARGV[1]), tonumber(ARGV[2])
local timeout = { rest = ARGV[3], code = ARGV[4] }
local queue_timeout = { rest = ARGV[5], code = ARGV[6] }
local lost = { rest = ARGV[7], code = ARGV[8] }
local no_worker = { rest = ARGV[9], code = ARGV[10] }
local left, budget = { rest = ARGV[11], code = ARGV[12] }, tonumber(ARGV[13])
local failures = { lost = lost, no_worker = no_worker, timeout = timeout }
local look, pool = key_look(), key_pool()

even_if_full()
local before = call('HMGET', pool, 'swept', 'moving')
local last, moving = num(before[1]), before[2]
call('HSET', pool, 'swept', NOW)

-- 1. After a gap: move what must be renewed and would be due before its owner's turn comes (renewals come every 5 s, and as soon as
-- an owner is back), but never beyond what a renewal now would give.
local gap, excess, soon = last > 0 and NOW - last or 0, 0, NOW + 5000
local function moved(at, most) return math.max(at, math.min(at + excess, NOW + most)) end
local function move_all(key, from)
  local members = call('ZRANGEBYSCORE', key, '(' .. from, soon, 'WITHSCORES')
  for i = 1, #members, 2 do call('ZADD', key, moved(tonumber(members[i + 1]), lease), members[i]) end
end

if gap > 1500 then
  excess = gap - 500

  for _, id in ipairs(call('ZRANGEBYSCORE', look, '-inf', soon)) do
    local f = call('HMGET', key_task(id), 'st', 'lv', 'lg', 'wd', 'dl', 'xd', 'm')
    local t, live = { lv = f[2], wd = f[4], dl = f[5], xd = f[6] }, f[1] == 'queued' or f[1] == 'executing'
    if live and t.lv then
      t.lv = whole(moved(num(t.lv), num(f[3])))
      call('HSET', key_task(id), 'lv', t.lv)
    end
    local lease_end = f[7] and call('ZSCORE', key_slots(f[7]), id)
    if lease_end then
      lease_end = moved(tonumber(lease_end), live and lease or grace)
      call('ZADD', key_slots(f[7]), lease_end, id)
      call('ZADD', look, live and run_instant(t, lease_end) or lease_end, id)
    elseif live then
      call('ZADD', look, wait_instant(t), id)
    end
  end
  move_all(key_replicas(), last)
  local from, by = string.match(moving or '', '^%d+ (%d+) (%d+)$')
  moving = '0 ' .. (from or whole(last)) .. ' ' .. whole(excess + num(by))
elseif gap < -500 then -- the clock went back: nothing holds for longer than a renewal now would give, nor is waited for
  for _, model in ipairs(call('ZRANGE', key_models(), 0, -1)) do
    local held = call('ZRANGE', key_slots(model), 0, -1, 'WITHSCORES')
    for i = 1, #held, 2 do
      local id = held[i]
      local f = call('HMGET', key_task(id), 'st', 'xd', 'lv', 'lg')
      local running = f[1] == 'executing'
      local lease_end = math.min(tonumber(held[i + 1]), NOW + (running and lease or grace))
      local leave = f[3] and whole(math.min(num(f[3]), NOW + num(f[4])))
      if running and leave then call('HSET', key_task(id), 'lv', leave) end
      call('ZADD', key_slots(model), lease_end, id)
      call('ZADD', look, running and run_instant({ xd = f[2], lv = leave }, lease_end) or lease_end, id)
    end
    for field, per_ms in pairs({ held = 1, tat = 1000, ttat = 1000 }) do
      local at = call('HGET', key_model(model), field)
      if at then call('HSET', key_model(model), field, whole(num(at) + gap * per_ms)) end
    end
  end
  local function shorten(key)
    local members = call('ZRANGEBYSCORE', key, '(' .. NOW + lease, '+inf')
    for _, member in ipairs(members) do call('ZADD', key, NOW + lease, member) end
    return members
  end
  shorten(key_replicas())
  for _, model in ipairs(shorten(key_offered())) do shorten(key_offers(model)) end
end

-- Offers move, too: those of some hundred models in each pass, as there may be many.
if moving then
  local cursor, from, by = string.match(moving, '^(%d+) (%d+) (%d+)$')
  local found = call('ZSCAN', key_offered(), cursor, 'COUNT', '500')
  excess = tonumber(by)
  for i = 1, #found[2], 2 do
    local model, at = found[2][i], tonumber(found[2][i + 1])
    if at > tonumber(from) and at <= soon then
      call('ZADD', key_offered(), moved(at, lease), model)
      move_all(key_offers(model), from)
    end
  end
  if found[1] == '0' then
    moving = nil
    call('HDEL', pool, 'moving')
  else
    call('HSET', pool, 'moving', found[1] .. ' ' .. from .. ' ' .. by)
  end
end

-- 2. Tasks whose instant has come.
local function fail(id, t, why, stop_until)
  end_task(id, t, 'failed', 'error', event_data(id, why.rest), why.code, '', nil, stop_until)
end

local function look_at_queued(id, t)
  local waited, late = passed(t.wd), passed(t.dl)
  if not waited and not late and not passed(t.lv) then
    call('ZADD', look, wait_instant(t), id)
    return
  end
  if late or waited then
    local why = late and timeout or queue_timeout
    end_waiting(id, t, 'failed', 'error', event_data(id, why.rest), why.code)
  else
    end_waiting(id, t, 'cancelled', 'cancelled', event_data(id, left.rest), left.code)
  end
end

local function look_at_running(id, t, lease_end)
  if passed(t.xd) and lease_end > NOW then
    fail(id, t, timeout, NOW + grace)
    tell_owner(id, t, 'timeout')
  elseif passed(t.xd) then
    release(id, t)
    settle(t, -1, -1, false)
    fail(id, t, timeout)
    tell_owner(id, t, 'timeout')
  elseif lease_end <= NOW then
    put_back(id, t, 'lease over', 'failed', false, failures, '') -- whose fault it was is not known
  elseif passed(t.lv) then
    end_task(id, t, 'cancelled', 'cancelled', event_data(id, left.rest), left.code, '', nil, NOW + grace)
    tell_owner(id, t, 'client')
  else
    call('ZADD', look, run_instant(t, lease_end), id)
  end
end

local due = call('ZRANGEBYSCORE', look, '-inf', NOW, 'LIMIT', 0, 100)
local touched, freed, accounts = {}, {}, {}
for _, id in ipairs(due) do
  local t = load(id)
  local before = t and t.st
  if not t or before == 'gone' then
    call('ZREM', look, id)
  elseif before == 'queued' then
    look_at_queued(id, t)
  else
    local lease_end = num(call('ZSCORE', key_slots(t.m), id))
    touched[t.m], freed[t.q .. ':' .. t.m] = true, t
    if before == 'executing' then
      look_at_running(id, t, lease_end)
    elseif lease_end > NOW then
      call('ZADD', look, lease_end, id)
    elseif release(id, t) then
      settle(t, -1, -1, false)
    end
  end
  if t and t.st ~= before then accounts[#accounts + 1] = account_of_end(t) end
end

-- Tasks of '*' that stood aside, as their name was held; those that would for too long, as the clock went back.
local aside = call('ZRANGEBYSCORE', key_aside(), '-inf', NOW_TEXT, 'LIMIT', '0', '100')
if not aside[1] then aside = call('ZRANGEBYSCORE', key_aside(), NOW + 600000, '+inf', 'LIMIT', '0', '100') end
for _, id in ipairs(aside) do
  local t = load(id)
  if t then
    dequeue(id, t)
    enqueue(id, t)
    touched[t.m] = true
  else
    call('ZREM', key_aside(), id)
  end
end
for model in pairs(touched) do wake(model) end
for _, t in pairs(freed) do wake_elsewhere(t) end

-- 3. Once a second: wake everybody who could start something (a wake-up may have been lost), and tidy up.
local woken = NOW - num(call('HGET', pool, 'woke'))
if woken >= 900 or woken < 0 then
  call('HSET', pool, 'woke', NOW)
  go_on_ruling(200)
  for _, model in ipairs(call('ZRANGE', key_backlog(), 0, 999)) do
    if startable(model) then
      for _, offered in ipairs(model == '*' and { '*' } or { model, '*' }) do
        for _, other in ipairs(call('ZRANGEBYSCORE', key_offers(offered), '(' .. NOW, '+inf', 'LIMIT', 0, 64)) do
          tell(other, 'r\n' .. model)
        end
      end
    end
  end

  local excess = math.min(call('ZCARD', key_recent()) - 10000, 10000)
  if excess > 0 then call('ZREMRANGEBYRANK', key_recent(), 0, excess - 1) end
  for _, replica in ipairs(call('ZRANGEBYSCORE', key_replicas(), '-inf', NOW - 60000, 'LIMIT', 0, 4)) do
    for _, model in ipairs(call('ZRANGE', key_offered(), 0, 999)) do call('ZREM', key_idle(model), replica) end
    call('HDEL', key_versions(), replica)
    call('ZREM', key_replicas(), replica)
  end
  for _, model in ipairs(call('ZRANGEBYSCORE', key_offered(), '-inf', NOW - 60000, 'LIMIT', 0, 1000)) do
    call('DEL', key_offers(model), key_idle(model))
    call('ZREM', key_offered(), model)
  end

  -- Tasks that share the line of '*', which nobody serves any more, while somebody offers the very models they asked for.
  if call('EXISTS', key_lanes('*')) == 1 and not is_offered('*') then
    local part = call('ZSCAN', look, call('HGET', pool, 'stranded') or '0', 'COUNT', '100')
    call('HSET', pool, 'stranded', part[1])
    for i = 1, #part[2], 2 do
      local id = part[2][i]
      local f = call('HMGET', key_task(id), 'm', 'an')
      if f[1] == '*' and f[2] and is_offered(f[2]) then
        local t = load(id)
        if call('ZSCORE', key_flow(t.q, t.m, t.u), id) then
          dequeue(id, t)
          enqueue_by_name(id, t)
        end
      end
    end
  end

  local function each_lane(model, act)
    for _, field in ipairs(call('HKEYS', key_model(model))) do
      local q = string.match(field, '^v:(.*)$')
      if q then act(q) end
    end
  end
  local found = call('ZSCAN', key_models(), call('HGET', pool, 'tidied') or '0', 'COUNT', '100') -- a part of them in each pass
  call('HSET', pool, 'tidied', found[1])
  local models, most_users = found[2], 2000
  for i = 1, #models, 2 do
    local model = models[i]
    if tonumber(models[i + 1]) > NOW - 3600000 then
      each_lane(model, function(q) most_users = most_users - forget_excess(q, model, most_users) end)
    elseif call('EXISTS', key_lanes(model), key_slots(model)) > 0
      or num(call('HGET', key_model(model), 'used')) > US - 3600000000 then
      call('ZADD', key_models(), NOW, model)
    else
      each_lane(model, function(q) call('DEL', key_debts(q, model), key_lifts(q, model), key_parked(q, model)) end)
      if not call('HGET', key_model(model), 'fixed') then
        call('DEL', key_model(model))
        call('ZREM', key_models(), model)
      end
    end
  end
end

-- 4. What ended tasks left behind.
local dropped, more = keep_within(budget, 500)

local head = call('ZRANGE', look, 0, 0, 'WITHSCORES')
local next_at = (more or moving or #aside == 100) and NOW or NOW + 1000
if head[2] then next_at = math.max(math.min(next_at, tonumber(head[2])), NOW) end
local back = call('ZRANGE', key_aside(), 0, 0, 'WITHSCORES')
if back[2] then next_at = math.max(math.min(next_at, tonumber(back[2])), NOW) end
return { next_at, NOW, #due, accounts, dropped }
