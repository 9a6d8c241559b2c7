-- submit: put a task into its lane, and take for the submitting replica's free slots, by the rule: an older task may come first
-- KEYS[1]  prefix of the pool: every key derives from it
-- ARGV     names below
-- returns  {'ok', state, place, enqueued ms, grants, later, model it is scheduled as} | {'full', waiting, limit, retry ms} | {'full_bytes', retry ms} |
--          {'user_full', waiting, limit, retry ms} | {'too_long', wait ms, longest ms, retry ms} the wait would be |
--          {'no_worker', 1 = workers offer other models, retry ms} | {'cancelled'} it was cancelled before it came
--          place: {position, wait, at least, at most}, ms; later: {model, ms until it may start a task, …}
-- Repeating it returns the same grants while they hold. Adds before anything else, so that a full Redis refuses it whole.
script('submit', nil, function(ARGV)
  local id, q, asked, u = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
  local key_id, task_type, priority = ARGV[5], ARGV[6], math.max(math.min(tonumber(ARGV[7]), 5), 0)
  local est_input, max_output, weight = ARGV[8], ARGV[9], ARGV[10]
  local timeout_ms, wait_ms, run_ms = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
  local keep_ms, linger_ms, waiting, stream = ARGV[14], tonumber(ARGV[15]), ARGV[16], ARGV[17]
  local metadata, payload = ARGV[18], ARGV[19]
  local replica, want, nonce, grant_ms = ARGV[20], tonumber(ARGV[21]), ARGV[22], tonumber(ARGV[23])
  local default_length, byte_limit, follow, worker = tonumber(ARGV[24]), tonumber(ARGV[25]), ARGV[26], ARGV[27]
  local traceparent, named, request_id = ARGV[28], ARGV[29], ARGV[30]

  local key = keys.task(id)
  if call('EXISTS', key) == 1 then
    local known = load(id)
    if known.st == 'gone' then return { 'cancelled' } end
    local where = known.st == 'queued' and place(id, known) or { 0, 0, 0, 0 }
    return { 'ok', known.st, where, known.en, repeat_grants(known.ng, nonce), {}, known.m }
  end
  local m = scheduled_as(asked, want > 0 and named == '1')
  if not m then
    local since = num(call('ZSCORE', keys.offered(), asked)) -- the longer it has been away, the longer it may be: as long again
    local others = call('ZCOUNT', keys.offered(), '(' .. NOW_TEXT, '+inf') > 0
    return { 'no_worker', others and 1 or 0, since > 0 and math.max(NOW - since, 1000) or 60000 }
  end
  local model, pool = keys.model(m), keys.pool()
  local queue = call('HMGET', keys.queue(q), 'n', 'max_length', 'weight', 'strict', 'max_wait_ms', 'admission')
  local lane = read_lane(m, q)
  lane.weight, lane.strict = queue[3], queue[4]
  local ruled = lane.ruled or queue[4] == '1'
  if num(queue[5]) > 0 then wait_ms = wait_ms > 0 and math.min(wait_ms, num(queue[5])) or num(queue[5]) end
  local at_once = false
  if want > 0 and (m == asked or not name_held_until({ an = asked })) then
    local turn, at = eligible(m, lane)
    local cap = turn and ruled and num(call('HGET', model, 'max_running_per_user')) or 0
    at_once = turn ~= nil and not at and (cap == 0 or count_of_user(m, u) < cap)
  end
  local order = whole(US - 2000000 * priority)
  if not at_once then
    local refused = refuse(q, m, u, order, queue, lane, default_length, wait_ms, timeout_ms, ruled)
    if refused then return refused end
  end
  if not stores(u, #payload, byte_limit) then
    return { 'full_bytes', math.max(math.ceil(interval_of(q, m, call('HGET', model, 'D:' .. q), lane.mean_ms)), 1) }
  end

  call('SET', keys.payload(id), payload)
  if lane.used < US - 60000000 then
    call('ZADD', keys.models(), NOW_TEXT, m)
    call('HSET', model, 'wide', WIDE)
  end
  call('ZADD', keys.recent(), NOW_TEXT, id)
  local t = { q = q, m = m, u = u, k = key_id, ty = task_type, en = NOW_TEXT, ei = est_input, ['or'] = order }
  local fields = {
    'q', q, 'm', m, 'u', u, 'ty', task_type, 'en', NOW_TEXT, 'or', order, 'tl', keep_ms, 'pb', whole(#payload),
  }
  local function put(name, value)
    fields[#fields + 1] = name
    fields[#fields + 1] = value
    t[name] = value
  end
  if key_id ~= '' then put('k', key_id) end
  if est_input ~= '0' then put('ei', est_input) end
  if weight ~= '1.0' then put('w', weight) end
  if priority > 0 then put('pr', ARGV[7]) end
  if max_output ~= '0' then put('mo', max_output) end
  if timeout_ms > 0 then put('dl', whole(NOW + timeout_ms)) end
  if wait_ms > 0 then put('wd', whole(NOW + wait_ms)) end
  if run_ms > 0 then put('rl', ARGV[13]) end
  if linger_ms > 0 then
    put('lg', ARGV[15])
    put('lv', whole(NOW + linger_ms))
  end
  if waiting == '1' then put('wt', '1') end
  if stream == '1' then put('sf', '1') end
  if metadata ~= '' then put('md', metadata) end
  if traceparent ~= '' then put('tp', traceparent) end
  if request_id ~= '' then put('rq', request_id) end
  if m ~= asked then put('an', asked) end
  if follow == '1' then put('rd', replica) end

  if at_once and not ruled then -- without the steps into the line and out of it
    local debt = call('ZSCORE', keys.debts(q, m), u)
    local start = tonumber(debt or lane.v)
    if start <= lane.v then
      if start < lane.v then note_lift(q, m, u, lane.v - start) end
      start, lane.v = lane.v, lane.v + 1
    end
    lane.lifts = lane.lifts + lane.tag - lane.idle_tag
    fields[#fields + 1], fields[#fields + 2] = 'ng', id
    local data = begin(id, t, lane, start, { false, false }, { replica, worker, nonce .. ':1', grant_ms }, {}, fields)
    if want > 1 then idle_for({ m }, replica) end
    return { 'ok', 'executing', { 0, 0, 0, 0 }, NOW, { describe(id, t, t.ep .. '-' .. t.sq, data) }, {}, m }
  end

  call('HSET', key, 'st', 'queued', unpack(fields))
  call('ZADD', keys.look(), wait_instant(t), id)
  enqueue(id, t)
  local grants, ids, later = {}, {}, {}
  if want > 0 then
    grants, ids, later = take({ m }, want, replica, worker, nonce, grant_ms)
    if #ids > 0 then call('HSET', key, 'ng', table.concat(ids, ',')) end
    for _, granted in ipairs(ids) do
      if granted == id then return { 'ok', 'executing', { 0, 0, 0, 0 }, NOW, grants, later, m } end
    end
  elseif ruled or lane.held > NOW then
    local at = wake(m)
    if at then later = { m, math.max(at - NOW, 1) } end
  elseif lane.limit == 0 or call('ZCARD', keys.slots(m)) < lane.limit then
    wake_one(m)
  end
  return { 'ok', 'queued', place(id, t), NOW, grants, later, m }
end)
