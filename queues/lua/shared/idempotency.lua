-- Idempotency keys: who submits with a known one gets the task that it names, and no second one (submit_task.lua). The key of a task that has
-- not ended lives as long as it; behind the end until its own time is over, at least a minute: whose connection was cut comes back
-- behind the end, too. It is written, and let go, in the very step that accepts the task, or ends it.
-- How many a user may have is one number, as rates are (limits.lua): each key takes its part of a period, so at most twice as many are
-- there as fit into one.
local name_wait, assign_name, release_name, retain_name, releases_name
do
local BEHIND_END = 60000
local BACKSTOP = 86400000 -- should a task be lost without an end, its key goes by itself so long behind its time

-- Whether a key names this task: it may have gone, and name another one by now.
local function names(key, id)
  local value = call('GET', key)
  return value and string.sub(value, -#id) == id
end

-- When all keys of a user are over, us, and of one key more its part of a period, and the period; nil: they are not counted.
local function standing(u, named)
  local each, period = string.match(named, ' (%d+) (%d+)$')
  each, period = num(each), num(period) * 1000
  if each == 0 then return end
  return math.min(math.max(num(call('GET', keys.idempotency_keys(u))), US), US + period), each, period
end

-- Whether a user may have one key more: nil, or in how many ms.
function name_wait(u, named)
  local over, each, period = standing(u, named)
  if over and over + each > US + period then return math.ceil((over + each - US - period) / 1000) end
end

-- Let a key of a user name a task that is accepted now. `named`: as submit gets it. Returns what the record holds of it
-- (`idempotency`): the name, and
-- until when, ms.
function assign_name(key, named, id, u)
  local name, fingerprint, ms = string.match(named, '^(%S+) (%S+) (%d+) ')
  local over, each = standing(u, named)
  if over then call('SET', keys.idempotency_keys(u), whole(over + each), 'PX', whole(math.ceil((over + each - US) / 1000))) end
  call('SET', key, fingerprint .. ' ' .. id, 'PX', whole(num(ms) + BACKSTOP))
  return name .. ' ' .. whole(NOW + num(ms))
end

-- The key names nothing any more: the next request with it creates a task.
function release_name(id, t)
  local key = keys.idempotency(string.match(t.idempotency, '^%S+'))
  if names(key, id) then call('DEL', key) end
end

-- The task has ended, and holds no slot. Returns for how long, ms, its key still names it; 0: it does not.
function retain_name(id, t)
  local name, till = string.match(t.idempotency, '^(%S+) (%d+)$')
  local key = keys.idempotency(name)
  if not names(key, id) then return 0 end
  local left = math.max(num(till) - NOW, BEHIND_END)
  call('PEXPIRE', key, whole(left))
  return left
end

-- Whether a failure lets the key go: there was no output, and the same request may do better (idempotency.py), or its worker says so.
function releases_name(t, code, data)
  if t.first_output_at then return false end
  if RELEASES_KEY[code] then return true end
  local fine, event = pcall(cjson.decode, data)
  return fine and type(event) == 'table' and event.retryable == true
end
end
