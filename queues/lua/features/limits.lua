-- Limits of an API key, and of each user of a delegating key: requests and tokens per minute and per day, and waiting tasks. (For running
-- tasks see running.lua.) A subject is a key ('k:' and its id) or a user ('u:' and the user); the users of a key are named `<id>/<name>`.
--
-- A rate is stored as one number, `tat`: the instant (us) at which the whole limit is available again (the generic cell rate algorithm).
-- Taking moves it forward by the taken part of the period, up to one period ahead of now. So the whole limit can be taken in one burst,
-- and becomes available again evenly. The limits for which the numbers were computed are stored with them. If a limit changes, the used amount
-- stays the same, up to the whole new limit; a debt stays a debt of one period at most. No debt is larger, so a worker's wrong count
-- blocks a client for two periods at most.
--
-- The record of a task has its charge at submission (`charge`): the expected `tokens`, and its `rates`: {subject, index in RATES, limit, tat
-- after it}. The end of the task settles the tokens. A use above the estimate can become a debt. A use below it is returned, and so is the
-- whole charge of a task that did no work, unless it became available again by time already.
local limits = {}
local RATES = { 'requests_minute', 'requests_day', 'tokens_minute', 'tokens_day' }
local PERIODS = { 60000000, 86400000000, 60000000, 86400000000 } -- us
local MAX_TOKENS = 4194304 -- cap of a task's reported input, and of its output

-- Return the key's and the user's subject.
function limits.subjects(user)
  local slash = string.find(user, '/', 1, true)
  return 'k:' .. (slash and string.sub(user, 1, slash - 1) or user), 'u:' .. user
end

-- Parse limits as in the arguments of submit: four rates, waiting and running tasks.
limits.parse = memoize(function(text)
  local found = {}
  for limit in string.gmatch(text, '%d+') do found[#found + 1] = limit + 0 end
  found.waiting, found.running, found.text, found.rates = found[5], found[6], text, {}
  for at, name in ipairs(RATES) do
    if found[at] > 0 then
      found.rates[#found.rates + 1] = { at = at, name = name, limit = found[at], period = PERIODS[at], tokens = at > 2 }
      found.in_tokens = at > 2
    end
  end
  return found
end)

-- Return the standing of a subject under the limits `of` (nil: those of the last computation; without one, return nil).
local function read(subject, of)
  local s = call('HMGET', keys.limit(subject), 'requests_minute', 'requests_day', 'tokens_minute', 'tokens_day', 'limits', 'expires_at')
  local reckoned = s[5]
  of = of or reckoned and limits.parse(reckoned)
  if not of then return nil end
  local stands = { subject = subject, limits = of, tats = {}, reckoned = reckoned, expires_at = num(s[6]) }
  stands.moved = reckoned and reckoned ~= of.text
  for i, rate in ipairs(of.rates) do
    local tat = num(s[rate.at])
    if stands.moved then
      local used = tat - US
      local most = used > rate.period and 2 * rate.period or rate.period
      tat = US + math.min(math.floor(used * limits.parse(reckoned)[rate.at] / rate.limit), most)
    end
    stands.tats[i] = tat
  end
  return stands
end

-- Write it. What has all come back is kept no longer; else the key lives a minute longer than it has to, so that this need not be said each
-- time.
local function write(stands)
  local key, last, fields = keys.limit(stands.subject), US, {}
  for i, rate in ipairs(stands.limits.rates) do
    local tat = stands.tats[i]
    fields[2 * i - 1], fields[2 * i] = rate.name, tat > US and whole(tat) or US_TEXT
    last = math.max(last, tat)
  end
  if last == US then
    call('DEL', key)
    stands.reckoned, stands.expires_at = nil, 0 -- it may be written again
    return
  end
  if stands.reckoned ~= stands.limits.text then
    stands.reckoned = stands.limits.text
    fields[#fields + 1], fields[#fields + 2] = 'limits', stands.reckoned
  end
  if last > stands.expires_at then
    stands.expires_at = last + 60000000
    fields[#fields + 1], fields[#fields + 2] = 'expires_at', whole(stands.expires_at)
    call('HSET', key, unpack(fields))
    call('PEXPIRE', key, whole(math.ceil((stands.expires_at - US) / 1000)))
  else
    call('HSET', key, unpack(fields))
  end
end

-- Return how much of a rate is left; below 0: a debt.
local function left_of(rate, tat)
  if tat <= US then return rate.limit end
  return math.floor((rate.period - tat + US) * rate.limit / rate.period)
end

-- Return the standings of a user's key and of the user.
local function standings_of(user, texts)
  local found, key, own = {}, limits.subjects(user)
  if texts[1] ~= '' then found[1] = read(key, limits.parse(texts[1])) end
  if texts[2] ~= '' then found[#found + 1] = read(own, limits.parse(texts[2])) end
  return found
end

-- Return what is left of requests, and of tokens: limit, amount left, ms until all is available. Of several rates, the one with the least left
-- counts; zeros if there is none. `charged`: after the charge that `weigh` computed.
local function remaining(standings, charged)
  local left = { 0, 0, 0, 0, 0, 0 }
  for _, stands in ipairs(standings) do
    for i, rate in ipairs(stands.limits.rates) do
      local at, tat = rate.tokens and 4 or 1, charged and stands.after[i] or stands.tats[i]
      local rest, reset = math.max(left_of(rate, tat), 0), tat > US and math.ceil((tat - US) / 1000) or 0
      if left[at] == 0 or rest < left[at + 1] or (rest == left[at + 1] and reset > left[at + 2]) then
        left[at], left[at + 1], left[at + 2] = rate.limit, rest, reset
      end
    end
  end
  return left
end

-- Return the rejection by the rate for which a task of this many tokens would wait longest; nil: none. Set `after`, the numbers after the
-- charge. A task with a larger estimate than the limit is charged the limit, and needs the whole limit, so it is not rejected forever.
local function weigh(standings, tokens)
  local rejected, longest = nil, 0
  for _, stands in ipairs(standings) do
    -- store the conversion to new limits once; repeated conversions would undo the passing of time
    if stands.moved and stands.limits.rates[1] then write(stands) end
    stands.after = {}
    for i, rate in ipairs(stands.limits.rates) do
      local tat = stands.tats[i]
      local taken = rate.tokens and math.min(tokens, rate.limit) or 1
      local after = math.max(tat, US) + math.floor(taken * rate.period / rate.limit)
      stands.after[i] = after
      local wait = after - US - rate.period
      if wait > longest then
        longest = wait
        rejected = { rejected = 'rate_limited', name = rate.name, subject = stands.subject, limit = rate.limit,
          used = rate.limit - left_of(rate, tat), asked = taken, retry_ms = math.ceil(wait / 1000) }
      end
    end
  end
  return rejected
end

hooks.attach('admit', 'limits', function(task, ask)
  local standings, model = standings_of(task.user, task.limits), models.get(task.model)
  local tokens = 0
  for _, stands in ipairs(standings) do
    if stands.limits.in_tokens and tokens == 0 then
      local output = (task.parts or 1) * granting.expected_output(task, model, lanes.user_of(task))
      tokens = math.max(math.floor((task.input_tokens or 0) + output + 0.5), 1)
    end
  end
  ask.standings, ask.tokens = standings, tokens
  local rejected = weigh(standings, tokens)
  for _, stands in ipairs(not rejected and ask.waits and standings or {}) do
    local most = stands.limits.waiting
    local waiting = most > 0 and num(call('HGET', keys.waits(), stands.subject)) or 0
    if most > 0 and waiting >= most then
      local each = placing.interval(task.model, task.queue) * math.max(models.lane(model, task.queue).users, 1)
      rejected = { rejected = 'rate_limited', name = 'waiting', subject = stands.subject, limit = most, used = waiting, asked = 1,
        retry_ms = math.max(math.ceil(each * (waiting - most + 1)), 1) }
      break
    end
  end
  return rejected
end)

hooks.attach('accept', 'limits', function(task, ask)
  local charge = { tokens = ask.tokens, rates = {}, waits = {} }
  for _, stands in ipairs(ask.standings) do
    if stands.limits.waiting > 0 then charge.waits[#charge.waits + 1] = stands.subject end
    for i, rate in ipairs(stands.limits.rates) do
      charge.rates[#charge.rates + 1] = { stands.subject, rate.at, rate.limit, stands.after[i] }
    end
    stands.tats = stands.after
    if stands.limits.rates[1] then write(stands) end
  end
  task.charge = charge
end)

hooks.attach('answers', 'limits', function(task, reply, ask)
  reply.rate_limits = remaining(ask.standings or standings_of(task.user, task.limits), reply.state and task.charge)
end)

-- Count (1) or uncount (-1) a waiting task for subjects with a limit of waiting tasks.
function limits.count_waiting(task, by)
  for _, subject in ipairs(task.charge and task.charge.waits or {}) do
    if call('HINCRBY', keys.waits(), subject, whole(by)) <= 0 then call('HDEL', keys.waits(), subject) end
  end
end

hooks.attach('queued', 'charge', limits.count_waiting)

-- Take more from the rates that a task was charged by, or return a part (amounts below 0). `more`: returns the amount for a rate (whether it is of
-- tokens, and its limit at the charge). The current limits apply.
local function take_more(charge, more)
  local standings = {}
  for _, rate in ipairs(charge.rates) do
    local subject, at, limit, own = unpack(rate)
    local amount = more(at > 2, limit)
    if amount ~= 0 then
      local stands = standings[subject]
      if not stands then
        local text = { 0, 0, 0, 0, 0, 0 } -- nothing is stored any more: use the limits of the charge
        for _, other in ipairs(charge.rates) do
          if other[1] == subject then text[other[2]] = whole(other[3]) end
        end
        stands = read(subject) or read(subject, limits.parse(table.concat(text, ' ')))
        standings[subject] = stands
      end
      for i, now in ipairs(stands.limits.rates) do
        if now.at == at then
          local tat, step = stands.tats[i], math.floor(math.abs(amount) * now.period / now.limit)
          if amount > 0 then
            stands.tats[i] = math.min(math.max(tat, US) + step, US + 2 * now.period)
          else
            stands.tats[i] = tat - math.min(math.floor(math.max(own - US, 0) * limit / now.limit), step)
          end
        end
      end
    end
  end
  for _, stands in pairs(standings) do write(stands) end
end

-- Charge a task this many more tokens.
function limits.add(task, tokens)
  take_more(task.charge, function(of_tokens) return of_tokens and tokens or 0 end)
end

-- If the answer is requested again, the first one counts in addition to the charge.
hooks.attach('redone', 'charge', function(task, used)
  if used.input and used.output then limits.add(task, used.input + used.output) end
  task.tokens_used = nil
end)

-- Settle the charge of a task. Without a settled attempt it did no work, and its request is returned, too.
local function settle(task)
  local used = task.tokens_used
  take_more(task.charge, function(of_tokens, limit)
    local taken = of_tokens and math.min(task.charge.tokens, limit) or 1
    if of_tokens and used == -1 then return 0 end -- the usage is unknown
    return (of_tokens and (used or 0) or used and 1 or 0) - taken
  end)
end

hooks.attach('closed', 'charge', function(task)
  if task.parts then return end
  settle(task)
  task.charge.rates = {}
end)

-- Settle a chain in a stage with parts, which is closed later; the use of parts that still run is added.
hooks.attach('ended', 'charge', function(task)
  if task.parts then settle(task) end
end)

hooks.attach('settled', 'charge', function(task, used)
  if not used then return end
  local tokens = used.input and used.output and math.min(used.input, MAX_TOKENS) + math.min(used.output, MAX_TOKENS) or nil
  if tokens then task.tokens_used = math.max(task.tokens_used or 0, 0) + tokens else task.tokens_used = task.tokens_used or -1 end
end)

-- read_limits: return what is left of the limits of a user and its key
-- args      user; limits: of the key and of the user, as in the arguments of submit
-- returns   {left}: {of_user, name, limit, left, ms until all is available} of each
script('read_limits', 'no-writes', function(ask)
  local found = {}
  for _, stands in ipairs(standings_of(ask.user, ask.limits)) do
    local of_user, of = string.sub(stands.subject, 1, 1) == 'u', stands.limits
    local function add(name, limit, left, reset) found[#found + 1] = { of_user, name, limit, math.max(left, 0), reset } end
    for i, rate in ipairs(of.rates) do
      local tat = stands.tats[i]
      add(rate.name, rate.limit, left_of(rate, tat), math.max(math.ceil((tat - US) / 1000), 0))
    end
    if of.waiting > 0 then add('waiting', of.waiting, of.waiting - num(call('HGET', keys.waits(), stands.subject)), 0) end
    if of.running > 0 then add('running', of.running, of.running - call('SCARD', keys.runs(stands.subject)), 0) end
  end
  return { left = found }
end)

return limits
