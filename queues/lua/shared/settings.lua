-- What is set for queues and models: `configured` by the operator's file, `overridden` by overrides, which win.
-- Both are hashes of `q:{queue}:{setting}` and `m:{model}:{setting}`; what holds stands in the hash of the queue or model.
local split, hash_of, set, continue_settings, rules_changed
do
function split(field) return string.match(field, '^([qm]):(.*):([%w_]+)$') end

function hash_of(kind, name) return kind == 'q' and keys.queue(name) or keys.model(name) end

-- Another unit of cost: tags of the old one mean nothing in it. Virtual time begins again for all lanes and flows of the model,
-- and what runs is charged in the new unit when it ends.
local function reset_charges(model)
  local hash = keys.model(model)
  local function level(line) call('ZUNIONSTORE', line, '1', line, 'WEIGHTS', '0') end

  level(keys.lanes(model))
  call('HDEL', hash, 'virtual_time')
  for _, q in ipairs(call('SMEMBERS', keys.queues())) do
    level(keys.flows(q, model))
    level(keys.parked(q, model))
    level(keys.debts(q, model))
    call('DEL', keys.lifts(q, model))
    if call('HEXISTS', hash, 'lane_vtime:' .. q) == 1 then
      call('HSET', hash, 'lane_vtime:' .. q, '0', 'lane_tag:' .. q, '0', 'lane_lifts:' .. q, '0')
    end
  end
  for _, id in ipairs(call('ZRANGE', keys.slots(model), '0', '-1')) do
    local q, ac = unpack(call('HMGET', keys.task(id), 'queue', 'account'))
    if ac then
      local account = read_account(ac)
      call('HINCRBY', hash, 'charged:' .. q, whole(0 - account.cost))
      call('HSET', keys.task(id), 'account', open_account(0, account.weight, 0, 0, account.tokens, account.counted))
    end
  end
end

-- Write a setting; nil: it is not set any more. With a new pace, what is left of the wait for the next start lasts as long as
-- it does at that pace.
local PACED = { requests_per_minute = 'requests_at', tokens_per_minute = 'tokens_at' }
function set(kind, name, setting, value)
  local hash = hash_of(kind, name)
  if setting == 'cost' and (call('HGET', hash, 'cost') or 'tokens') ~= (value or 'tokens') then reset_charges(name) end
  if setting == 'windows' then windows.set(name, call('HGET', hash, setting), value) end
  local next_start = PACED[setting]
  if next_start then
    local s = call('HMGET', hash, setting, next_start)
    local left, before, now = num(s[2]) - US, num(s[1]), num(value)
    if left > 0 and before > 0 and now > 0 then
      call('HSET', hash, next_start, whole(US + left * before / now))
    else
      call('HDEL', hash, next_start)
    end
  end
  if value then
    call('HSET', hash, setting, value)
  else
    call('HDEL', hash, setting)
  end
end

-- Count the running tasks of a model as running tasks of their queues: from now on a rule asks for it.
local function count_running(model)
  for _, id in ipairs(call('ZRANGE', keys.slots(model), '0', '-1')) do
    local q, ac = unpack(call('HMGET', keys.task(id), 'queue', 'account'))
    if ac and string.sub(ac, -1) ~= '1' then
      call('SADD', keys.running(q, model), id)
      call('SADD', keys.load(q), id)
      call('HSET', keys.task(id), 'account', string.sub(ac, 1, -2) .. '1')
    end
  end
end

local function any(values)
  for _, value in ipairs(values) do
    if value and value ~= '' and value ~= '0' then return true end
  end
  return false
end

-- Bring a model in line with the settings that hold now: the mark by which scripts know that it has rules besides weights and a
-- limit, what these count; unpark and wake what may start. Returns whether there may be more to unpark.
local MAX_UNPARKED = 1000
local function apply_rules(model, queues, strict)
  local hash = keys.model(model)
  local s = call('HMGET', hash, 'paused', 'requests_per_minute', 'tokens_per_minute', 'max_running_per_user', 'max_waiting_per_user',
    'windows')
  local rules = any(s)
  if rules or call('HEXISTS', hash, 'rules') == 1 then call('HSET', hash, 'rules', rules and '1' or '0') end
  if rules or strict then count_running(model) end
  local more = false
  for _, q in ipairs(queues) do -- (where no rule is left, no script reads `lane_skipped` any more)
    if call('HDEL', hash, 'lane_skipped:' .. q) == 1 and call('ZSCORE', keys.lanes(model), q) then lift_lane(q, model) end
    local parked = keys.parked(q, model)
    local users = call('ZRANGE', parked, '0', MAX_UNPARKED - 1)
    for _, u in ipairs(users) do unpark(model, u) end
    more = more or (#users == MAX_UNPARKED and not call('ZSCORE', parked, users[1]))
  end
  wake(model)
  return more
end

-- Continue to bring models in line after a change that concerns all of them; about `most` of them now.
function continue_settings(most)
  local cursor = call('HGET', keys.pool(), 'ruling')
  if not cursor then return end
  local queues, strict, again = call('SMEMBERS', keys.queues()), call('HGET', keys.pool(), 'strict') == '1', false
  repeat
    local found = call('ZSCAN', keys.models(), cursor, 'COUNT', '100')
    cursor = found[1]
    for i = 1, #found[2], 2 do
      if apply_rules(found[2][i], queues, strict) then again = true end
    end
    most = most - #found[2] / 2
  until cursor == '0' or most <= 0
  if cursor == '0' and not again then call('HDEL', keys.pool(), 'ruling') else call('HSET', keys.pool(), 'ruling', cursor) end
end

-- Settings of these models have changed, and of queues: keep the marks and counts that follow from them. What follows for very
-- many other models, the sweep continues with.
local MAX_PER_STEP = 500
function rules_changed(models, of_queues)
  local strict, before = false, call('HGET', keys.pool(), 'strict') == '1'
  local queues = call('SMEMBERS', keys.queues())
  for _, q in ipairs(queues) do
    local s = call('HMGET', keys.queue(q), 'paused', 'max_running', 'reserved')
    strict = strict or any(s)
  end
  call('HSET', keys.pool(), 'strict', strict and '1' or '0')
  for _, q in ipairs(queues) do call('HSET', keys.queue(q), 'strict', strict and '1' or '0') end
  for _, model in ipairs(models) do
    if apply_rules(model, queues, strict) then call('HSET', keys.pool(), 'ruling', '0') end
  end
  if of_queues then
    call('HSET', keys.pool(), 'ruling', '0')
    continue_settings(MAX_PER_STEP)
  end
end
end
