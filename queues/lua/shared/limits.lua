-- Limits of a caller's key, and of each user of a delegating one: requests and tokens a minute and a day, tasks that wait, and tasks
-- that run (user_concurrency.lua). A subject is one of the two: 'k:' and the key's id, 'u:' and the user; a key's users are named `<id>/<name>`.
--
-- A rate is one number, `tat`: the instant (us) at which all that was taken has come back (the generic cell rate algorithm). Taking
-- moves it by the period's part that was taken, and may move it a whole period ahead of now: so the whole limit can be taken in one burst, and
-- comes back evenly. With the numbers stands by which limits (`of`) they were reckoned: under another limit as much is used as before,
-- but not more than all of it, and what was a debt is one of a period at most. No debt is larger: a worker's wrong count blocks a caller for twice the period at most.
--
-- What a task is charged at its submission stands in its record (`limits`): r, and how many tasks of its key and of its user may run (0:
-- no limit), or - if there are no such limits; whose waiting tasks it is counted among (1: its key's, 2: its user's, 3: both), the
-- tokens that it is expected to use; and of each rate k or u and its place in RATES, the limit, and `tat` behind it. Its end settles the tokens
-- with those that it used, once: more than was expected may become a debt; less comes back, and all of a task that came to nothing, as far
-- as time has not brought it back already.
local subjects_of, left_of, rate_limits_of, count_tokens, weigh, running_of, waiting_limit_reached, remaining_of, charge_limits, settle_limits, count_waiting
do
local RATES = { 'requests_minute', 'requests_day', 'tokens_minute', 'tokens_day' }
local PERIODS = { 60000000, 86400000000, 60000000, 86400000000 } -- us

function subjects_of(u)
  local slash = string.find(u, '/', 1, true)
  return 'k:' .. (slash and string.sub(u, 1, slash - 1) or u), 'u:' .. u
end

-- Limits as submit is given them, in their order, and as `rates` {name, limit, …}.
local parse_limits = memoize(function(text)
  local limits = {}
  for limit in string.gmatch(text, '%d+') do limits[#limits + 1] = limit + 0 end
  limits.waiting, limits.running = limits[5], limits[6]
  limits.text, limits.rates = text, {}
  for at, name in ipairs(RATES) do
    local limit = limits[at]
    if limit > 0 then
      local mark = whole(at) .. ' ' .. whole(limit) .. ' '
      local rate = { at = at, name = name, limit = limit, period = PERIODS[at], tokens = at > 2, mark = mark }
      limits.rates[#limits.rates + 1] = rate
      limits.in_tokens = rate.tokens
    end
  end
  return limits
end)

-- How a subject stands with its limits (nil: with those by which it was reckoned last, if it was): `tats` in the order of their rates.
local function read_tats(subject, limits)
  local s = call('HMGET', keys.limit(subject), 'requests_minute', 'requests_day', 'tokens_minute', 'tokens_day', 'limits', 'expires_at')
  local of, tats = s[5], {}
  limits = limits or of and parse_limits(of)
  if not limits then return nil end
  for i, rate in ipairs(limits.rates) do
    local tat = num(s[rate.at])
    if of and of ~= limits.text then
      local used = tat - US
      local most = used > rate.period and 2 * rate.period or rate.period
      tat = US + math.min(math.floor(used * parse_limits(of)[rate.at] / rate.limit), most)
    end
    tats[i] = tat
  end
  local moved = of and of ~= limits.text
  return { subject = subject, limits = limits, tats = tats, of = of, ends = num(s[6]), moved = moved }
end

-- Write it. What has all come back is kept no longer; else the key lives a minute longer than it has to, so that this need not be said
-- each time.
local function write_tats(stands)
  local key, last, fields = keys.limit(stands.subject), US, {}
  for i, rate in ipairs(stands.limits.rates) do
    local tat = stands.tats[i]
    fields[2 * i - 1], fields[2 * i] = rate.name, tat > US and whole(tat) or US_TEXT
    if tat > last then last = tat end
  end
  if last == US then
    call('DEL', key)
    stands.of, stands.ends = nil, 0
    return
  end
  if stands.of ~= stands.limits.text then
    stands.of = stands.limits.text
    fields[#fields + 1], fields[#fields + 2] = 'limits', stands.of
  end
  local longer = last > stands.ends
  if longer then
    stands.ends = last + 60000000
    fields[#fields + 1], fields[#fields + 2] = 'expires_at', whole(stands.ends)
  end
  call('HSET', key, unpack(fields))
  if longer then call('PEXPIRE', key, whole(math.ceil((stands.ends - US) / 1000))) end
end

-- How much of a rate is left; less than nothing: a debt.
function left_of(rate, tat)
  if tat <= US then return rate.limit end
  return math.floor((rate.period - tat + US) * rate.limit / rate.period)
end

-- How a user stands with all limits of a task of his: those of his key, and his own. `text`s: as submit is given them.
function rate_limits_of(u, of_key, of_user)
  local found, key, user = {}, subjects_of(u)
  if of_key ~= '' then found[1] = read_tats(key, parse_limits(of_key)) end
  if of_user ~= '' then found[#found + 1] = read_tats(user, parse_limits(of_user)) end
  return found
end

-- Do they count tokens?
function count_tokens(standings)
  for _, stands in ipairs(standings) do
    if stands.limits.in_tokens then return true end
  end
  return false
end

-- What a task that is expected to use `tokens` takes of each rate (`after`). Returns the rejection, as submit replies it, of the
-- rate that it would have to wait for longest, or nil. What is only guessed keeps out no task for ever: of more tokens than a limit
-- has, a task is charged the limit, and waits until all of it is there. Charges nothing.
function weigh(standings, tokens)
  local refusal, longest = nil, 0
  for _, stands in ipairs(standings) do
    -- else it would move again, and time would bring nothing back meanwhile; without rates what was used under others stays until it is back
    if stands.moved and stands.limits.rates[1] then write_tats(stands) end
    stands.after = {}
    for i, rate in ipairs(stands.limits.rates) do
      local tat, limit = stands.tats[i], rate.limit
      local taken = rate.tokens and (tokens < limit and tokens or limit) or 1
      local after = (tat > US and tat or US) + math.floor(taken * rate.period / limit)
      stands.after[i] = after
      local wait = after - US - rate.period
      if wait > longest then
        longest = wait
        refusal = { 'limited', rate.name, stands.subject, limit, limit - left_of(rate, tat), taken, math.ceil(wait / 1000) }
      end
    end
  end
  return refusal
end

-- How many tasks each subject may run at a time: {{subject, how many}, …}.
function running_of(standings)
  local found = {}
  for _, stands in ipairs(standings) do
    if stands.limits.running > 0 then found[#found + 1] = { stands.subject, stands.limits.running } end
  end
  return found
end

-- The subject that has as many waiting tasks as it may: {'limited', 'waiting', subject, limit, how many wait}; nil: there is none.
function waiting_limit_reached(standings)
  for _, stands in ipairs(standings) do
    local most = stands.limits.waiting
    local waiting = most > 0 and num(call('HGET', keys.waits(), stands.subject)) or 0
    if most > 0 and waiting >= most then return { 'limited', 'waiting', stands.subject, most, waiting } end
  end
end

-- What is left of requests and of tokens: limit, how much is left, ms until all is back; of each the rate with the least left;
-- zeros where there is none. With what was weighed, if it is `charged`.
function remaining_of(standings, charged)
  local told = { 0, 0, 0, 0, 0, 0 }
  for _, stands in ipairs(standings) do
    for i, rate in ipairs(stands.limits.rates) do
      local at, tat = rate.tokens and 4 or 1, charged and stands.after[i] or stands.tats[i]
      local left, reset = left_of(rate, tat), tat > US and math.ceil((tat - US) / 1000) or 0
      if left < 0 then left = 0 end
      if told[at] == 0 or left < told[at + 1] or (left == told[at + 1] and reset > told[at + 2]) then
        told[at], told[at + 1], told[at + 2] = rate.limit, left, reset
      end
    end
  end
  return told
end

-- Charge what was weighed. Returns the field `limits` of the task's record.
function charge_limits(standings, tokens)
  local of_key, of_user, waits, rates = 0, 0, 0, ''
  for _, stands in ipairs(standings) do
    local limits, letter = stands.limits, string.sub(stands.subject, 1, 1)
    local is_key = letter == 'k'
    if is_key then of_key = limits.running else of_user = limits.running end
    if limits.waiting > 0 then waits = waits + (is_key and 1 or 2) end
    for i, rate in ipairs(limits.rates) do
      rates = rates .. ' ' .. letter .. rate.mark .. whole(stands.after[i])
    end
    if limits.rates[1] then
      stands.tats = stands.after
      write_tats(stands)
    end
  end
  local head = of_key + of_user > 0 and 'r' .. of_key .. ' ' .. of_user .. ' ' or '-'
  return head .. waits .. ' ' .. whole(tokens) .. rates
end

-- The limits over time of a key (k) or user (u) that a task was charged by.
local function charged_by(lm, whose)
  local limits = { 0, 0, 0, 0 }
  for letter, at, limit in string.gmatch(lm, ' (%l)(%d) (%d+)') do
    if letter == whose then limits[at + 0] = limit end
  end
  return parse_limits(string.format('%d %d %d %d 0 0', unpack(limits)))
end

-- Take more of the rates that a task was charged by, or give back what is less than nothing: `more` returns how much of a rate, of
-- tokens or not, by what the task was charged of it at most. It counts by the limits as they are now.
local function take_more(t, more)
  local key, user = subjects_of(t.user)
  local standings = {}
  for letter, at, limit, own in string.gmatch(t.limits, ' (%l)(%d) (%d+) (%d+)') do
    local amount = more(at + 0 > 2, limit + 0)
    if amount ~= 0 then
      local stands = standings[letter]
      if not stands then
        local subject = letter == 'k' and key or user
        stands = read_tats(subject) or read_tats(subject, charged_by(t.limits, letter)) -- all had come back
        standings[letter] = stands
      end
      for i, rate in ipairs(stands.limits.rates) do
        if rate.at == at + 0 then
          local tat, step = stands.tats[i], math.floor(math.abs(amount) * rate.period / rate.limit)
          if amount > 0 then
            stands.tats[i] = math.min(math.max(tat, US) + step, US + 2 * rate.period)
          else
            stands.tats[i] = tat - math.min(math.floor(math.max(own - US, 0) * limit / rate.limit), step)
          end
        end
      end
    end
  end
  for _, stands in pairs(standings) do write_tats(stands) end
end

-- Settle what a task with limits was charged: it used `used` tokens. nil: it came to nothing, and takes no request either. `beside`:
-- it used them in addition to what it was charged for, for an answer that is asked for again (repairs.lua).
function settle_limits(t, used, beside)
  if used and not string.find(t.limits, ' %l[34] ') then return end -- no limit is one of tokens
  local tokens = string.match(t.limits, '(%d+) %l') or 0
  take_more(t, function(of_tokens, limit)
    if beside then return of_tokens and used or 0 end
    local taken = of_tokens and math.min(tokens, limit) or 1
    return (of_tokens and used or used and 1 or 0) - taken
  end)
end

-- Count a task among the waiting ones of those who have a limit of them, or (-1) no more.
function count_waiting(t, by)
  if not t.limits then return end
  local whose = string.match(t.limits, '^%-([123])') or string.match(t.limits, '^r%d+ %d+ ([123])')
  if not whose then return end
  local key, user = subjects_of(t.user)
  local function count(subject)
    if call('HINCRBY', keys.waits(), subject, by) <= 0 then call('HDEL', keys.waits(), subject) end
  end
  if whose ~= '2' then count(key) end
  if whose ~= '1' then count(user) end
end
end
