-- May something start now? The one answer: which lane of a model starts a task next, or when one may.
--
-- Most models have no rules but their limit: then it is the lane with the smallest tag. Rules (field `rules` of a model, `strict`
-- of every queue, kept by configure.lua) are looked at only where there are some:
--   1  a model that is paused, held (its provider said: not before) or paced (requests and tokens per minute, windows) starts nothing; nor does
--      one through an upstream that is held or whose breaker is open (upstreams.lua);
--   2  a lane may not start more while its queue is paused or runs `max_running` tasks over all models;
--   3  a lane that has not all of its reserved slots comes before those that have; else the smallest tag.
local ALL_RULES = { 'concurrency', 'rules', 'paused', 'cooldown_until', 'requests_per_minute', 'tokens_per_minute',
  'requests_at', 'tokens_at', 'upstream_state', 'windows' }

-- 1: the instant (us) from which a model may start a task of `tokens`; 0 = now, FOREVER = when an operator resumes it. And whether it is no
-- earlier, and hangs on a request that may not have left yet (windows.lua). `s`: its fields as in ALL_RULES. Requests are spread evenly (the generic cell rate algorithm with a burst of one), and so are tokens; as
-- one request may hold many tokens, those of the last minute are added up, too, so that no minute holds more than its limit.
local function paced_until(model, s, tokens)
  if s[3] == '1' then return FOREVER end
  local at = num(s[4]) * 1000
  if num(s[5]) > 0 then at = math.max(at, num(s[7])) end
  local tpm, open = num(s[6]), false
  if s[10] then
    local free
    free, open = windows.free_at(model, s[10], 1)
    at = math.max(at, free)
  end
  if tpm > 0 then
    at = math.max(at, num(s[8]))
    local spent, seconds, total = call('HGETALL', keys.spent(model)), {}, 0
    local now_s = math.floor(US / 1000000)
    for i = 1, #spent, 2 do
      local second = tonumber(spent[i])
      if second > now_s - 61 then
        seconds[#seconds + 1] = { second, tonumber(spent[i + 1]) }
        total = total + seconds[#seconds][2]
      end
    end
    table.sort(seconds, function(a, b) return a[1] < b[1] end)
    for _, second in ipairs(seconds) do -- wait until enough of the last minute is over
      if total <= 0 or total + tokens <= tpm then break end
      total = total - second[2]
      at = math.max(at, (second[1] + 61) * 1000000)
    end
  end
  return at > US and at or 0, open
end

-- The same instant in ms, after which a replica asks again: FOREVER also if it is unknown, as the report that settles it wakes a replica.
local function paced_ms(model, s, tokens)
  local at, open = paced_until(model, s, tokens)
  if open or at >= FOREVER then return FOREVER end
  return at > 0 and NOW + math.ceil((at - US) / 1000) or 0
end

-- What a task takes out of its model's minute: `s` as in ALL_RULES.
local function spend(model, s, tokens)
  local rpm, tpm = num(s[5]), num(s[6])
  if rpm > 0 then call('HSET', keys.model(model), 'requests_at', whole(math.ceil(math.max(num(s[7]), US) + 60000000 / rpm))) end
  if tpm > 0 then
    call('HSET', keys.model(model), 'tokens_at', whole(math.ceil(math.max(num(s[8]), US) + 60000000 * tokens / tpm)))
    local now_s = math.floor(US / 1000000)
    call('HINCRBY', keys.spent(model), whole(now_s), whole(tokens))
    call('PEXPIRE', keys.spent(model), '120000')
    for _, second in ipairs(call('HKEYS', keys.spent(model))) do
      if tonumber(second) <= now_s - 61 then call('HDEL', keys.spent(model), second) end
    end
  end
end

-- 2, 3: the lane of a model with rules that starts next: its name and tag, and the tag to which the virtual time moves; nil when
-- none may. `skipped` are lanes that were passed over. `line`: lanes and tags, if not those that wait.
local function choose_lane(model, limit, line)
  line = line or call('ZRANGE', keys.lanes(model), '0', '-1', 'WITHSCORES')
  local queues = {}
  for _, q in ipairs(call('SMEMBERS', keys.queues())) do
    local s = call('HMGET', keys.queue(q), 'paused', 'max_running', 'reserved')
    local lane = { paused = s[1] == '1', owed = limit > 0 and call('SCARD', keys.running(q, model)) < num(s[3]) }
    if num(s[2]) > 0 then lane.full = call('SCARD', keys.load(q)) >= num(s[2]) end
    queues[q] = lane
  end
  local chosen, chosen_tag, chosen_owed, first_tag
  local skipped = {}
  for i = 1, #line, 2 do
    local lane = queues[line[i]] or {}
    if lane.paused or lane.full then
      skipped[#skipped + 1] = line[i]
    else
      first_tag = first_tag or line[i + 1]
      if not chosen or (lane.owed and not chosen_owed) then
        chosen, chosen_tag, chosen_owed = line[i], line[i + 1], lane.owed
      end
    end
  end
  return chosen, chosen_tag, first_tag, skipped
end

-- What decisions need of a lane and its model. `lifts` and `idle_tag` are as stored.
local function read_lane(model, q)
  local limit, rules, unit, mean_output, mean_ms, pace, held, used, users, V, v, lifts, waiting, drain, charged, idle_tag, top, ups =
    unpack(call('HMGET', keys.model(model), 'concurrency', 'rules', 'cost', 'mean_output', 'mean_ms', 'mean_speed',
      'cooldown_until', 'used', 'users', 'virtual_time',
      'lane_vtime:' .. q, 'lane_lifts:' .. q, 'waiting:' .. q, 'drain:' .. q, 'charged:' .. q, 'lane_tag:' .. q,
      'longest_output', 'upstream_state'))
  return {
    q = q, limit = num(limit), ruled = rules == '1', unit = unit, mean_output = mean_output, mean_ms = mean_ms, pace = pace,
    held = num(held), used = num(used), users = num(users), V = num(V), v = num(v), lifts = num(lifts), waiting = num(waiting),
    drain = drain, charged = num(charged), idle_tag = num(idle_tag), top = num(top), has_breaker = ups == '2',
  }
end

-- The lane of a model that starts a task next, as `read_lane` gives it, with its start `tag`, `weight` as stored, where the virtual
-- time `moves_to`, whether its task gets the `last` slot, and, where there are any, the model's `rules` (as in ALL_RULES), and whether
-- it is `chosen` by them before the `first`. nil: none may. Then the instant (ms) from which one may, if time alone is in the way (a
-- pace returns it together with the lane: of a task of one token); and the lanes that were passed over. Changes nothing. `comer`: a lane
-- that gets a task and has none waiting; then only if no task waits in others.
local function eligible(model, comer)
  if is_reserved(model) and call('HEXISTS', keys.model(model), 'fixed') == 0 then return nil end -- its limits are not known (any more)
  local lane, queue, line = comer, nil, nil
  if comer then
    if comer.users > 0 then return nil end
    queue, line = { comer.weight, comer.strict }, { comer.q, whole(math.max(comer.V, comer.idle_tag)) }
  else
    line = call('ZRANGE', keys.lanes(model), '0', '0', 'WITHSCORES')
    if not line[1] then return nil end
    queue, lane = call('HMGET', keys.queue(line[1]), 'weight', 'strict'), read_lane(model, line[1])
  end
  local free = lane.limit > 0 and lane.limit - call('ZCARD', keys.slots(model)) or FOREVER
  if free <= 0 then return nil end
  if lane.held > NOW then return nil, lane.held end
  if lane.has_breaker then
    local at = upstreams.blocked_until(model)
    if at > 0 then return nil, at end
  end
  local tag = tonumber(line[2])
  local first, rules = tag, nil
  if lane.ruled or queue[2] == '1' then
    rules = call('HMGET', keys.model(model), unpack(ALL_RULES))
    local chosen, its_tag, first_tag, skipped = choose_lane(model, lane.limit, comer and line)
    if not chosen then return nil, nil, skipped end
    if chosen ~= lane.q then
      lane = read_lane(model, chosen)
      queue = call('HMGET', keys.queue(chosen), 'weight')
    end
    tag, first = tonumber(its_tag), tonumber(first_tag)
    lane.skipped = skipped
  end
  lane.tag, lane.moves_to, lane.weight, lane.last, lane.rules = tag, first, queue[1], free == 1, rules
  local at = rules and paced_ms(model, rules, 1) or 0
  return lane, at > 0 and at or nil, lane.skipped
end
