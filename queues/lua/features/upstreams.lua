-- Upstreams: the servers behind a model's workers, each with a circuit breaker and a cooldown of its own. A worker names its upstream; workers
-- without a name share ''. Tasks of the line '*' are not counted, because clients can invent any model names there.
--
-- A breaker is closed, open, or half-open. While it is closed, the outcomes of attempts are stored from the first failure on, for a window of
-- time. If enough of them, and at least half, are failures, it opens, and no task of the model starts through the upstream for a while. Then it is
-- half-open, and a few tasks at a time can start as probes. If as many probes succeed, it closes. If one fails, it opens again for twice
-- as long. Only failures that are the upstream's fault count (BLAMES_UPSTREAM). Attempts that began before it opened do not count.
-- (The pattern is from Nygard, Release It!, 2007; the bounds are near those of resilience4j and Finagle.)
--
-- In a model's state, `upstreams` is set if outcomes are stored, and `barred` if a breaker is not closed or an upstream is in a cooldown.
local upstreams = {}
local FAILURES, WINDOW, OPEN = 5, 60000, 5000 -- defaults: number of failures, their window (ms), time open (ms)
local MAX_OPEN = 60000 -- ms; the longest time open, unless the model sets a longer one
local PROBES = 2 -- at a time; the same number must succeed
local KEPT = 100 -- outcomes that are stored
local MAX_STORED = 1000 -- upstreams with a stored state
local MAX_OF_MODEL = 100 -- the same for one model: its workers choose their names
local MAX_LOOKED_AT = 256 -- of one model, over all replicas
local MAX_HELD, UNTRIED = 3600000, 3600000

models.zero_counts.breaker_failures = true -- it has no breaker

-- Return the range of a model's upstreams in the set of those with a stored state.
local function span_of(name) return '[' .. name .. '\n', '(' .. name .. '\v' end

-- Begin to store the state of an upstream (`bars`: more than outcomes). Return false if there are too many.
local function mark(name, up, bars)
  local member, known = name .. '\n' .. up, keys.upstreams()
  if not call('ZSCORE', known, member) then
    if call('ZCARD', known) >= MAX_STORED or call('ZLEXCOUNT', known, span_of(name)) >= MAX_OF_MODEL then return false end
    call('ZADD', known, '0', member)
  end
  local model = models.get(name)
  model.upstreams, model.barred = true, model.barred or bars or nil
  models.use_extras(model)
  models.save(name)
  return true
end

-- Publish the change of a breaker to the replicas with workers for the model. `by`: the replica that logs it.
local function announce(name, up, what, why, ms, by)
  local message = 'breaker\n' .. table.concat({ what, whole(ms), by or '', why, name, up }, '\n')
  local reached = {}
  for _, offered in ipairs(offered_as(name)) do
    for _, replica in ipairs(call('ZRANGEBYSCORE', keys.offers(offered), '(' .. NOW_TEXT, '+inf', 'LIMIT', '0', '64')) do
      if not reached[replica] then publish(replica, message) end
      reached[replica] = true
    end
  end
  if by and by ~= '' and not reached[by] then publish(by, message) end
end

-- Return the instant (ms) until which no task of a model starts through an upstream, and why: 'cooldown' | 'open' | 'probing': all probes are
-- running, so check again in a second. 0: a task can start; with 'probe', it is a probe.
local function state_of(name, up)
  local s = call('HMGET', keys.upstream(name, up), 'cooldown_until', 'till', 'forced')
  local held, till, forced = num(s[1]), num(s[2]), s[3]
  if forced == 'open' then return FOREVER, 'open' end
  if forced ~= 'closed' and till > NOW then return math.max(held, till), 'open' end
  if held > NOW then return held, 'cooldown' end
  if forced == 'closed' or till == 0 then return 0 end
  if call('SCARD', keys.probes(name, up)) >= PROBES then return NOW + 1000, 'probing' end
  return 0, 'probe'
end

-- Return the upstreams of the workers that may run a model.
local function all_of(name)
  local found, known = {}, {}
  for _, offered in ipairs(offered_as(name)) do
    local live = call('ZRANGEBYSCORE', keys.serving(offered), '(' .. NOW_TEXT, '+inf', 'LIMIT', '0', whole(MAX_LOOKED_AT))
    if not live[1] and call('ZCOUNT', keys.offers(offered), '(' .. NOW_TEXT, '+inf') > 0 then live[1] = '\n' end
    for _, member in ipairs(live) do
      local up = string.match(member, '^(.*)\n')
      if not known[up] then found[#found + 1] = up end
      known[up] = true
    end
  end
  return found
end

-- Return the same as `state_of` over all upstreams of a model, with the earliest instant: 'open' if all are open, 'probing' if each is open or
-- probing, else 'cooldown'; nil: a task can start.
function upstreams.opens(_, name)
  local least, open, broken = FOREVER, true, true
  local all = all_of(name)
  for _, up in ipairs(all) do
    local at, why = state_of(name, up)
    if at == 0 then return nil end
    least, open, broken = math.min(least, at), open and why == 'open', broken and why ~= 'cooldown'
  end
  if not all[1] then return nil end
  return least, open and 'open' or broken and 'probing' or 'cooldown'
end

hooks.attach('opens', 'barred', upstreams.opens)

hooks.attach('admit', 'barred', function(task)
  local at, why = upstreams.opens(nil, task.model)
  if why == 'open' then return { rejected = 'unavailable', retry_ms = math.min(at - NOW, 60000) } end
  if why == 'cooldown' and task.timeout_ms and not task.fallbacks and at - NOW > task.timeout_ms then
    return { rejected = 'too_long', waiting = at - NOW, limit = task.timeout_ms, retry_ms = at - NOW }
  end
end, true)

hooks.attach('may_start', 'barred', function(task, grant)
  local at = state_of(task.model, grant.upstream or '')
  return at > 0 and { at = at, upstream = true } or nil
end, true)

hooks.attach('granted', 'barred', function(task)
  if select(2, state_of(task.model, task.upstream or '')) ~= 'probe' then return end
  task.probe = 1
  call('SADD', keys.probes(task.model, task.upstream or ''), task.id)
  announce(task.model, task.upstream or '', 'probing', '', 0, task.owner)
end, true)

local function end_probe(task) call('SREM', keys.probes(task.model, task.upstream or ''), task.id) end

hooks.attach('released', 'probe', end_probe)

-- Return how many outcomes WINDOW has, and how many of them are failures.
local function count_outcomes(list)
  local number, failures = 0, 0
  for _, entry in ipairs(call('LRANGE', list, '0', '-1')) do
    local at, good = string.match(entry, '^(%d+) ([01])$')
    if tonumber(at) > NOW - WINDOW then
      number = number + 1
      if good == '0' then failures = failures + 1 end
    end
  end
  return number, failures
end

-- Record an outcome that shows whether an upstream works: `good`, or `why` not.
local function note(task, good, why)
  local name, up = task.model, task.upstream or ''
  local model = models.get(name)
  if name == '*' or good and not model.upstreams then return end -- the usual case
  local hash, list = keys.upstream(name, up), keys.outcomes(name, up)
  local till, number, forced = unpack(call('HMGET', hash, 'till', 'number', 'forced'))
  if forced or (till and not task.probe) or (till and good and task.probe == 2) then return end
  local entry = NOW_TEXT .. (good and ' 1' or ' 0')
  if good and not till then -- it cannot change the breaker
    if call('LPUSHX', list, entry) > KEPT then call('LTRIM', list, '0', whole(KEPT - 1)) end
    return
  end
  local most, open_ms = model.breaker_failures or FAILURES, model.breaker_open_ms or OPEN
  if most == 0 or not mark(name, up) then return end
  call('LPUSH', list, entry)
  call('LTRIM', list, '0', whole(KEPT - 1))
  call('PEXPIRE', list, whole(WINDOW))
  local counted, failures = count_outcomes(list)
  local bad = failures * 2 >= counted
  if till and not bad and counted - failures >= PROBES then
    call('HDEL', hash, 'till', 'since', 'number', 'why')
    call('DEL', list)
    announce(name, up, 'closed', '', 0, task.owner)
  elseif not good and bad and (till and num(till) <= NOW or not till and failures >= most) then
    local times = num(number)
    local ms = math.min(open_ms * 2 ^ times, math.max(MAX_OPEN, open_ms))
    mark(name, up, true)
    call('HSET', hash, 'till', whole(NOW + ms), 'number', whole(times + 1), 'why', why)
    if not till then
      call('HSET', hash, 'since', NOW_TEXT)
      call('DEL', list)
    end
    announce(name, up, 'open', why, ms, task.owner)
  end
end

-- Return whether a failure with this code shows that the upstream works (true) or does not (false); nil: neither. An unreadable answer is
-- the upstream's fault, unless it had to match a schema: then it can be the model's.
local function verdict_of(task, code)
  if code == 'JSON_PARSE_FAILED' then return task.schema ~= nil end
  if PROVES_UPSTREAM_WORKS[code] then return true end
  if BLAMES_UPSTREAM[code] then return false end
  return nil
end

hooks.attach('attempted', nil, function(task, code)
  local works = code == nil or verdict_of(task, code)
  if works ~= nil then note(task, works, code or '') end
end)

-- The first output of a probe shows that the upstream works. A later failure of the probe still counts.
hooks.attach('output', 'probe', function(task)
  note(task, true, '')
  task.probe = 2
  end_probe(task)
  waking.wake(task.model)
end)

-- Start a cooldown of an upstream until an instant (ms), as its provider asked for. Return false if there are too many upstreams.
function upstreams.hold(name, up, until_ms, by)
  if not mark(name, up, true) then return false end
  local hash = keys.upstream(name, up)
  until_ms = math.min(until_ms, NOW + MAX_HELD)
  if until_ms > num(call('HGET', hash, 'cooldown_until')) then call('HSET', hash, 'cooldown_until', whole(until_ms), 'cooldown_by', by or '') end
  return true
end

-- Update a model's state from the stored states of its upstreams.
local function update_state(name)
  local bars, known, model = nil, call('ZRANGEBYLEX', keys.upstreams(), span_of(name)), models.get(name)
  for _, member in ipairs(known) do
    bars = bars or call('EXISTS', keys.upstream(name, string.sub(member, #name + 2))) == 1 or nil
  end
  model.upstreams, model.barred = known[1] ~= nil or nil, bars
  models.save(name)
end

-- Remove outdated states of up to a hundred upstreams, including breakers that were not probed for an hour.
local function tidy()
  local changed = {}
  for _, member in ipairs(call('ZRANDMEMBER', keys.upstreams(), '100') or {}) do
    local name, up = string.match(member, '^([^\n]*)\n(.*)$')
    local hash, list = keys.upstream(name, up), keys.outcomes(name, up)
    local s = call('HMGET', hash, 'cooldown_until', 'till')
    if s[2] and num(s[2]) < NOW - UNTRIED and call('SCARD', keys.probes(name, up)) == 0 then call('HDEL', hash, 'till', 'since', 'number', 'why') end
    if num(s[1]) <= NOW and s[1] then call('HDEL', hash, 'cooldown_until', 'cooldown_by') end
    local last = string.match(call('LINDEX', list, '0') or '', '^%d+')
    if last and tonumber(last) <= NOW - WINDOW then call('DEL', list) end
    if call('EXISTS', hash, list) == 0 then call('ZREM', keys.upstreams(), member) end
    if call('EXISTS', hash) == 0 then changed[name] = true end
  end
  for name in pairs(changed) do update_state(name) end
end

-- Return whether the breakers of all upstreams of a model are open, and each had a failed probe or is forced open.
local function exhausted(name)
  local all = all_of(name)
  for _, up in ipairs(all) do
    local s = call('HMGET', keys.upstream(name, up), 'till', 'number', 'forced')
    if s[3] ~= 'open' and (s[3] or num(s[1]) <= NOW or num(s[2]) < 2) then return false end
  end
  return all[1] ~= nil
end

-- End tasks with a waiting caller if the probes of all upstreams failed and no other model may run them.
local function end_those_who_wait(name, ends)
  local looks, ended = 500, 0
  for queue, lane in pairs(models.lanes(models.get(name))) do
    for _, user in ipairs(lane.users > 0 and call('ZRANGE', keys.flows(queue, name), '0', '99') or {}) do
      for _, id in ipairs(call('ZRANGE', keys.flow(queue, name, user), '0', '99')) do
        if looks == 0 or ended == 100 then return end
        looks = looks - 1
        local task = records.load(id)
        if task and task.waiting and task.state == 'queued' and not hooks.first('falls', task) then
          ending.finish_waiting(task, ending.failure(task, ends.unavailable))
          ending.add_related(task)
          ended = ended + 1
        end
      end
    end
  end
end

hooks.attach('sweep', nil, function(ask)
  for _, name in ipairs(call('ZRANGE', keys.backlog(), '0', '999')) do
    if models.get(name).barred and exhausted(name) then end_those_who_wait(name, ask.ends) end
  end
  tidy()
end)

-- force_breaker: force the breaker of an upstream open or closed, or end that, and add an audit log entry. Outcomes and a cooldown are removed
-- args      model; upstream, '' of workers that name none; state: open | closed | auto: the breaker decides again, starting closed; who, address,
--           mark; replica
-- returns   {outcome = 'ok', audit: id of the audit entry, before: open | closed | auto} | {outcome = 'unknown'}: no worker names this upstream,
--           and it has no stored state | {outcome = 'too_many'}: too many upstreams have a stored state
script('force_breaker', nil, function(ask)
  local name, up = ask.model, ask.upstream
  local hash = keys.upstream(name, up)
  local known = call('EXISTS', hash) == 1
  for _, other in ipairs(all_of(name)) do known = known or other == up end
  if not known then return { outcome = 'unknown' } end
  local before = call('HGET', hash, 'forced') or 'auto'
  if not mark(name, up, true) then return { outcome = 'too_many' } end
  call('HDEL', hash, 'till', 'since', 'number', 'why', 'cooldown_until', 'cooldown_by')
  call('DEL', keys.outcomes(name, up))
  if ask.state == 'auto' then
    call('HDEL', hash, 'forced')
  else
    call('HSET', hash, 'forced', ask.state, 'since', NOW_TEXT)
  end
  announce(name, up, ask.state == 'open' and 'open' or 'closed', 'FORCED', 0, ask.replica)
  call('ZADD', keys.models(), 'GT', NOW_TEXT, name)
  waking.wake(name)
  local id = outbox.action({ actor = ask.who, address = ask.address, mark = ask.mark, action = 'update',
    target = 'upstream ' .. name .. (up ~= '' and ' ' .. up or ''), before = { breaker = before }, after = { breaker = ask.state } })
  return { outcome = 'ok', audit = id, before = before }
end)

return upstreams
