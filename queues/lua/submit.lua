-- submit: put a task into its lane, and take for the submitting replica's free slots, by the rule: an older task may come first
-- KEYS[1]  prefix of the pool: every key derives from it
-- ARGV[1]  task id
-- ARGV[2…] queue, model, user, priority; timeout, wait and linger, ms (0: none); payload
-- ARGV[10…] replica; slots that it has free; nonce of this call; grant length, ms; waiting tasks that a queue holds unless it is
--          set, bytes of payloads that the pool holds; 1: the replica reads the task's events; worker whose slots these are; 1: that
--          offers the model by its name
-- ARGV[19…] further fields of the record (keys.py, RECORD), each with its value
-- returns  {'ok', state, place, enqueued ms, grants, later, model it is scheduled as} | {'full', waiting, limit, retry ms} | {'full_bytes', retry ms} |
--          {'user_full', waiting, limit, retry ms} | {'too_long', wait ms, longest ms, retry ms} the wait would be |
--          {'no_worker', 1 = workers offer other models, and none offered this one lately, retry ms} | {'cancelled'} it was cancelled before it came
--          place: {position, wait, at least, at most}, ms; later: {model, ms until it may start a task, …}
-- Repeating it returns the same grants while they hold. Adds before anything else, so that a full Redis refuses it whole.
script('submit', nil, function(ARGV)
  local id, q, asked, u, priority = ARGV[1], ARGV[2], ARGV[3], ARGV[4], math.max(math.min(num(ARGV[5]), 5), 0)
  local timeout_ms, wait_ms, linger_ms, payload = num(ARGV[6]), num(ARGV[7]), num(ARGV[8]), ARGV[9]
  local replica, want, nonce, grant_ms = ARGV[10], num(ARGV[11]), ARGV[12], num(ARGV[13])
  local default_length, byte_limit, follow = num(ARGV[14]), num(ARGV[15]), ARGV[16]
  local worker, named = ARGV[17], ARGV[18]

  local key = keys.task(id)
  if call('EXISTS', key) == 1 then
    local known = load(id)
    if known.st == 'gone' then return { 'cancelled' } end
    local where = known.st == 'queued' and place(id, known) or NOWHERE
    return { 'ok', known.st, where, known.en, repeat_grants(known.ng, nonce), {}, known.m }
  end
  local m = scheduled_as(asked, want > 0 and named == '1')
  if not m then
    -- the longer it has been away, the longer it may be: as long again. What was there a minute ago is known
    local since = math.max(num(call('ZSCORE', keys.offered(), asked)), num(call('ZSCORE', keys.offered(), '*')))
    local others = since == 0 and call('ZCOUNT', keys.offered(), '(' .. NOW_TEXT, '+inf') > 0
    return { 'no_worker', others and 1 or 0, since > 0 and math.max(NOW - since, 1000) or 60000 }
  end
  local model = keys.model(m)
  local n, max_length, weight, strict, longest_wait, admission =
    unpack(call('HMGET', keys.queue(q), 'n', 'max_length', 'weight', 'strict', 'max_wait_ms', 'admission'))
  local lane = read_lane(m, q)
  lane.weight, lane.strict = weight, strict
  local ruled = lane.ruled or strict == '1'
  longest_wait = num(longest_wait)
  if longest_wait > 0 then wait_ms = wait_ms > 0 and math.min(wait_ms, longest_wait) or longest_wait end
  local at_once = false
  if want > 0 and (m == asked or not name_held_until({ an = asked })) then
    local turn, at = eligible(m, lane)
    local cap = turn and ruled and num(call('HGET', model, 'max_running_per_user')) or 0
    at_once = turn ~= nil and not at and (cap == 0 or count_of_user(m, u) < cap)
  end
  local order = whole(US - 2000000 * priority)
  if not at_once then
    local length = { waiting = num(n), most = num(max_length), adaptive = admission == 'adaptive' }
    if length.most == 0 then length.most = default_length end
    local refused = refuse(q, m, u, order, length, lane, wait_ms, timeout_ms, ruled)
    if refused then return refused end
  end
  if not stores(u, #payload, byte_limit) then
    return { 'full_bytes', math.max(math.ceil(interval_of(q, m, lane.drain, lane.mean_ms)), 1) }
  end

  call('SET', keys.payload(id), payload)
  if lane.used < US - 60000000 then
    call('ZADD', keys.models(), NOW_TEXT, m)
    call('HSET', model, 'wide', WIDE)
  end
  call('ZADD', keys.recent(), NOW_TEXT, id)
  local t = { q = q, m = m, u = u, en = NOW_TEXT, ['or'] = order }
  local fields = { 'q', q, 'm', m, 'u', u, 'en', NOW_TEXT, 'or', order, 'pb', whole(#payload) }
  local last = #fields
  local function put(name, value)
    fields[last + 1], fields[last + 2], last = name, value, last + 2
    t[name] = value
  end
  for i = 19, #ARGV, 2 do put(ARGV[i], ARGV[i + 1]) end
  if timeout_ms > 0 then put('dl', whole(NOW + timeout_ms)) end
  if wait_ms > 0 then put('wd', whole(NOW + wait_ms)) end
  if linger_ms > 0 then put('lv', whole(NOW + linger_ms)) end
  if m ~= asked then put('an', asked) end
  if follow == '1' then put('rd', replica) end

  if at_once and not ruled then -- without the steps into the line and out of it
    local debt = call('ZSCORE', keys.debts(q, m), u)
    local start = num(debt or lane.v)
    if start <= lane.v then
      if start < lane.v then note_lift(q, m, u, lane.v - start) end
      start, lane.v = lane.v, lane.v + 1
    end
    lane.lifts = lane.lifts + lane.tag - lane.idle_tag
    fields[#fields + 1], fields[#fields + 2] = 'ng', id
    local grant = { replica = replica, worker = worker, nonce = nonce, number = 1, ms = grant_ms }
    local data = begin(id, t, lane, start, false, false, grant, {}, fields)
    if want > 1 then idle_for({ m }, replica) end
    return { 'ok', 'executing', NOWHERE, NOW, { describe(id, t, t.sq, data) }, {}, m }
  end

  call('HSET', key, 'st', 'queued', unpack(fields))
  call('ZADD', keys.look(), wait_instant(t), id)
  enqueue(id, t)
  local grants, ids, later = {}, {}, {}
  if want > 0 then
    grants, ids, later = take({ m }, want, replica, worker, nonce, grant_ms)
    if #ids > 0 then call('HSET', key, 'ng', table.concat(ids, ',')) end
    for _, granted in ipairs(ids) do
      if granted == id then return { 'ok', 'executing', NOWHERE, NOW, grants, later, m } end
    end
  elseif ruled or lane.held > NOW then
    local at = wake(m)
    if at then later = { m, math.max(at - NOW, 1) } end
  elseif lane.limit == 0 or call('ZCARD', keys.slots(m)) < lane.limit then
    wake_one(m)
  end
  return { 'ok', 'queued', place(id, t), NOW, grants, later, m }
end)
