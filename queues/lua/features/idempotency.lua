-- Idempotency keys: a submit with a known key returns the task of that key, and creates no second one. The key is valid while its task waits
-- or runs. After the end it is valid until its own time is over, and at least for a minute, so that a client whose connection was cut can
-- return. It is written in the step that accepts the task, and released in the step that ends it.
--
-- `idempotency` of a task: the `name` of the key, the `fingerprint` of the request, the time for which the key is valid (`ms`), and the part of
-- the user's `period_ms` that it takes (`each_us`; 0: no limit). The number of a user's keys is limited like a rate (limits.lua), so at most
-- twice the number that fits into one period exists.
local idempotency = {}
local BEHIND_END = 60000
local BACKSTOP = 86400000 -- if a task is lost without an end, its key expires this long after its time

-- Return the task of a key, and the fingerprint of its request.
local function named(key)
  local fingerprint, id = string.match(call('GET', key) or '', '^(%S+) (%S+)$')
  return id, fingerprint
end

-- Return when all keys of a user have expired (us); nil: they are not limited.
local function all_over(task)
  local of = task.idempotency
  if of.each_us == 0 then return nil end
  return math.min(math.max(num(call('GET', keys.idempotency_keys(task.user))), US), US + 1000 * of.period_ms)
end

hooks.attach('known', 'idempotency', function(task)
  local of = task.idempotency
  local id, fingerprint = named(keys.idempotency(of.name))
  if id and fingerprint ~= of.fingerprint then return { rejected = 'other' } end
  local known = id and records.load(id)
  if id and not known then return { existing = id } end
  if known then
    return { existing = id, state = known.state, place = known.state == 'queued' and placing.place(known) or nil, enqueued_at = known.enqueued_at,
      model = known.model, asked = known.requested_model or known.model, route = known.route, template = known.template }
  end
  local over = all_over(task)
  if over and over + of.each_us > US + 1000 * of.period_ms then
    return { rejected = 'idempotency_keys', retry_ms = math.ceil((over + of.each_us - US - 1000 * of.period_ms) / 1000) }
  end
end)

hooks.attach('accept', 'idempotency', function(task)
  local of, over = task.idempotency, all_over(task)
  if over then
    over = over + of.each_us
    call('SET', keys.idempotency_keys(task.user), whole(over), 'PX', whole(math.ceil((over - US) / 1000)))
  end
  call('SET', keys.idempotency(of.name), of.fingerprint .. ' ' .. task.id, 'PX', whole(of.ms + BACKSTOP))
  task.named_until = NOW + of.ms
end)

-- Release the key: the next request with it creates a task.
local function release(task)
  local key = keys.idempotency(task.idempotency.name)
  if named(key) == task.id then call('DEL', key) end
end

-- A failure without output releases the key if the same request can succeed later (idempotency.py), or if its worker reports so. The end of a
-- task that no reader has seen releases it, too.
hooks.attach('ended', 'idempotency', function(task, finish)
  local lets_go = finish.unread
  if finish.state == 'failed' and not task.first_output_at and not task.stage_entered_at then
    local fine, event = pcall(cjson.decode, finish.data)
    lets_go = RELEASES_KEY[finish.code] or (fine and type(event) == 'table' and event.retryable == true)
  end
  if lets_go then release(task) end
end)

hooks.attach('closed', 'idempotency', function(task)
  local key = keys.idempotency(task.idempotency.name)
  if named(key) ~= task.id then return end
  local left = math.max(task.named_until - NOW, BEHIND_END)
  call('PEXPIRE', key, whole(left))
  task.keep_ms = math.max(task.keep_ms, left)
end)

hooks.attach('deleted', 'idempotency', release)

return idempotency
