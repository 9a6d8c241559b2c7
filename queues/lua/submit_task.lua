-- submit_task: put a task into its lane, and take for the submitting replica's free slots, by the rule: an older task may come first
-- KEYS[1]  prefix of the pool: every key derives from it
-- ARGV[1]  task id
-- ARGV[2…] queue, model, user, priority; timeout, wait and linger, ms (0: none; a wait below 0: so long, whatever its queue says); payload
-- ARGV[10…] replica; slots that it has free; nonce of this call; grant length, ms; waiting tasks that a queue holds unless it is
--          set, bytes of payloads that the pool holds; 1: the replica reads the task's events; worker whose slots these are; 1: that
--          offers the model by its name; entries that the outbox holds
-- ARGV[20…] limits of the caller's key, and of its user: requests a minute and a day, tokens the same, waiting and running tasks
--          (0: none; '': no limits at all)
-- ARGV[22]  quota that it is paid from ('': none)
-- ARGV[23]  of an idempotency key its name, the fingerprint of what is asked, for how long it is remembered, ms, which part of its user's
--          period it takes, us (0: it is not counted), and that period, ms ('': none)
-- ARGV[24]  upstream of that worker
-- ARGV[25…] how many arguments say what chain it begins (chains.lua; 0: none), and these
-- ARGV     behind them further fields of the record (keys.py, RECORD), each with its value
-- returns  {'ok', state, place, enqueued ms, grants, later, model it is scheduled as, model it asks for now} | {'full', waiting, limit, retry ms} | {'full_bytes', retry ms} |
--          {'user_full', waiting, limit, retry ms} | {'too_long', wait ms, longest ms, retry ms} the wait would be |
--          {'no_worker', 1 = workers offer other models, and none offered this one lately, retry ms} | {'cancelled'} it was cancelled before it came |
--          {'unavailable', retry ms} the breakers of all its upstreams are open |
--          {'outbox_full'} what ended is not recorded yet, so no more is begun |
--          {'used_up', how many} its token has no use left (field `token_use`) |
--          {'limited', rate or 'waiting', subject, limit, used, what it would take, retry ms} (limits.lua)
--          {'quota', micro-credits that it would be held, that are there} it cannot be paid (credits.lua) |
--          {'no_balance', subject, window or ''} the balance must be loaded first (load_balance.lua)
--          {'names', retry ms} its user has as many idempotency keys as may be |
--          {'other'} its idempotency key names a task of another fingerprint |
--          {'same', task, its state or '' its record is kept no more, place, enqueued ms, model it is scheduled as, model it asks for, name
--          that its caller gave, template} its idempotency key names that one already: nothing was taken of anything
--          and behind each of these but 'cancelled', where there are limits: what is left of them (`remaining_of` in limits.lua)
--          place: {position, wait, at least, at most}, ms; later: as `take`
-- Repeating it returns the same grants while they hold. Adds before anything else, so that a full Redis refuses it whole.
script('submit_task', nil, function(ARGV)
  local id, q, asked, u, priority = ARGV[1], ARGV[2], ARGV[3], ARGV[4], math.max(math.min(num(ARGV[5]), 5), 0)
  local timeout_ms, wait_ms, linger_ms, payload = num(ARGV[6]), num(ARGV[7]), num(ARGV[8]), ARGV[9]
  local replica, want, nonce, grant_ms = ARGV[10], num(ARGV[11]), ARGV[12], num(ARGV[13])
  local default_length, byte_limit, follow = num(ARGV[14]), num(ARGV[15]), ARGV[16]
  local worker, by_name, most_unrecorded = ARGV[17], ARGV[18], tonumber(ARGV[19])
  local upstream, first_field = ARGV[24], 26 + ARGV[25]
  local chain = first_field > 26 and chains.read_start(ARGV, 26, first_field - 1)
  local parts = chain and chain.parts or {}
  local limited, quota = ARGV[20] ~= '' or ARGV[21] ~= '', ARGV[22]

  local key = keys.task(id)
  if call('EXISTS', key) == 1 then
    local known = load(id)
    if known.state == 'gone' then return { 'cancelled' } end
    local where = known.state == 'queued' and place(id, known) or NOWHERE
    return { 'ok', known.state, where, known.enqueued_at, repeat_grants(known.granted_tasks, nonce), {}, known.model,
      known.requested_model or known.model }
  end
  local standings = limited and rate_limits_of(u, ARGV[20], ARGV[21]) or nil
  local function refusal(reply)
    if standings then reply[#reply + 1] = remaining_of(standings, false) end
    return reply
  end
  local named, name_key = ARGV[23], nil
  if named ~= '' then
    local name, fingerprint = string.match(named, '^(%S+) (%S+) ')
    name_key = keys.idempotency(name)
    local of, first = string.match(call('GET', name_key) or '', '^(%S+) (%S+)$')
    if of and of ~= fingerprint then return refusal({ 'other' }) end
    local known = first and load(first)
    if first and not known then return refusal({ 'same', first, '', NOWHERE, 0, '', '', '', '' }) end
    if known then
      local where = known.state == 'queued' and place(first, known) or NOWHERE
      local told = { known.enqueued_at, known.model, known.requested_model or known.model, known.route or '', known.template or '' }
      return refusal({ 'same', first, known.state, where, unpack(told) })
    end
    local wait = name_wait(u, named)
    if wait then return refusal({ 'names', wait }) end
  end
  if call('XLEN', keys.outbox()) >= most_unrecorded then return refusal({ 'outbox_full' }) end
  local t = {}
  for i = first_field, #ARGV, 2 do t[ARGV[i]] = ARGV[i + 1] end
  local permit = permits.is(asked, t.type)
  if permit then want = 0 end -- no worker takes it
  local m = permit and asked or scheduled_as(asked, want > 0 and by_name == '1')
  if not m and is_reserved(asked) and t.waiting ~= '1' then m, want = asked, 0 end -- an endpoint's worker comes back, no caller waits here
  local falls, costs = t.fallbacks, quota ~= '' and costs_of(t)
  if falls and (not m or blocked_until(asked) > NOW + num(t.fallback_after)) then
    t.model, t.requested_model = m or asked, m ~= asked and asked or nil
    local i = next_open_fallback(t) or not m and next_offered_fallback(t)
    if i then
      choose_fallback(t, i, true, blocked_by_code(asked))
      m, asked, want = t.model, t.requested_model or t.model, 0 -- the slots are for another one
    end
  end
  if not m then
    -- the longer it has been gone, the longer it may take: as long again. What was there a minute ago is known
    local since = math.max(num(call('ZSCORE', keys.offered(), asked)), num(call('ZSCORE', keys.offered(), '*')))
    local others = since == 0 and call('ZCOUNT', keys.offered(), '(' .. NOW_TEXT, '+inf') > 0
    return refusal({ 'no_worker', others and 1 or 0, since > 0 and math.max(NOW - since, 1000) or 60000 })
  end
  local model = keys.model(m)
  local n, max_length, weight, strict, longest_wait, admission =
    unpack(call('HMGET', keys.queue(q), 'waiting', 'max_length', 'weight', 'strict', 'max_wait_ms', 'admission'))
  local lane = read_lane(m, q)
  lane.weight, lane.strict = weight, strict
  if lane.has_breaker then
    local at, why = upstreams.blocked_until(m)
    if at > 0 and why == 'open' then return refusal({ 'unavailable', math.min(at - NOW, 60000) }) end
  end
  if timeout_ms > 0 and not t.fallbacks and (lane.held > NOW or lane.has_breaker) then
    local cooldown_ms = cooldown_of(asked) - NOW
    if cooldown_ms > timeout_ms then return refusal({ 'too_long', cooldown_ms, timeout_ms, cooldown_ms }) end
  end
  local ruled = lane.ruled or strict == '1'
  longest_wait = num(longest_wait)
  if wait_ms < 0 then
    wait_ms = -wait_ms
  elseif longest_wait > 0 then
    wait_ms = wait_ms > 0 and math.min(wait_ms, longest_wait) or longest_wait
  end
  local at_once = false
  if want > 0 and not lane.has_breaker and not parts[1] and (m == asked or not name_cooldown_until({ requested_model = asked })) then
    local turn, at = eligible(m, lane)
    local cap = turn and ruled and num(call('HGET', model, 'max_running_per_user')) or 0
    at_once = turn ~= nil and not at and (cap == 0 or count_of_user(m, u) < cap)
  end
  if at_once and lane.waiting > 0 and call('ZSCORE', keys.parked(q, m), u) then at_once = false end -- behind those that are held
  local order = whole(US - 2000000 * priority)
  t.queue, t.model, t.user, t.enqueued_at, t.order = q, m, u, NOW_TEXT, order
  local tokens, limit_reached = 0, nil
  if standings then
    if count_tokens(standings) then
      tokens = math.max(math.floor(chains.expected_tokens(t, parts, lane.mean_output) + 0.5), 1)
    end
    limit_reached = weigh(standings, tokens)
    at_once = at_once and not subject_at_limit(running_of(standings))
    local too_many = not limit_reached and not at_once and waiting_limit_reached(standings)
    if too_many then
      local each = interval_of(q, m, lane.drain, lane.mean_ms) * math.max(call('ZCARD', keys.flows(q, m)), 1)
      too_many[6], too_many[7] = 1, math.max(math.ceil(each * (too_many[5] - too_many[4] + 1)), 1)
      limit_reached = too_many
    end
  end
  local funds, price, later_price = nil, 0, chain and chain.reserve or 0
  if costs and (#costs > 0 or later_price > 0) then
    local subject, window
    funds, subject, window = funds_of(u, quota)
    if not funds then return refusal({ 'no_balance', subject, window }) end
    price = chains.most_cost(t, parts, lane.top, costs) + later_price
    if price > funds.granted + funds.room then return refusal({ 'quota', price, funds.granted + funds.room }) end
  end
  if not at_once then
    local more = num(n) > 0 and math.max(#parts - 1, 0) or 0 -- if no task waits a chain has room, however many its parts
    local length = { waiting = num(n) + more, more = more, most = num(max_length), adaptive = admission == 'adaptive' }
    if length.most == 0 then length.most = default_length end
    local refused = refuse(q, m, u, order, length, lane, wait_ms, timeout_ms, ruled)
    if refused then return refusal(refused) end
  end
  if limit_reached then return refusal(limit_reached) end
  local uses, uses_ms, used
  if t.token_use then
    uses, uses_ms, used = string.match(t.token_use, '^(%d+) (%d+) (.+)$')
    used = keys.uses(used)
    if num(call('GET', used)) >= num(uses) then return refusal({ 'used_up', num(uses) }) end
  end
  local bytes, large = #payload, nil
  if chain then bytes, large = chains.bytes_at_start(chain, payload) end
  if not stores(u, bytes, byte_limit, large) then
    return refusal({ 'full_bytes', math.max(math.ceil(interval_of(q, m, lane.drain, lane.mean_ms)), 1) })
  end

  if not parts[1] then call('SET', keys.payload(id), payload) end
  if used then
    call('INCR', used)
    if call('PTTL', used) < num(uses_ms) then call('PEXPIRE', used, uses_ms) end
  end
  if lane.used < US - 60000000 then
    call('ZADD', keys.models(), NOW_TEXT, m)
    call('HSET', model, 'wide', WIDE)
  end
  call('ZADD', keys.recent(), NOW_TEXT, id)
  local fields = { 'queue', q, 'model', m, 'user', u, 'enqueued_at', NOW_TEXT, 'order', order, fields_after_fallback(ARGV, first_field, t, falls) }
  local last = #fields
  local function put(name, value)
    fields[last + 1], fields[last + 2], last = name, value, last + 2
    t[name] = value
  end
  if timeout_ms > 0 then put('deadline', whole(NOW + timeout_ms)) end
  local wait_over = wait_ms > 0 and whole(NOW + wait_ms) or nil
  if not parts[1] then
    put('payload_bytes', whole(#payload))
    if wait_over then put('wait_deadline', wait_over) end
  end
  if linger_ms > 0 then put('linger_at', whole(NOW + linger_ms)) end
  if m ~= asked then put('requested_model', asked) end
  if follow == '1' then put('readers', replica) end
  if name_key then put('idempotency', assign_name(name_key, named, id, u)) end
  local left = standings and remaining_of(standings, true) or nil
  if standings then put('limits', charge_limits(standings, tokens)) end
  if funds then put('reserved_credits', reserve_credits(funds, price)) end
  if chain then
    put('stage', chain.stage)
    if parts[1] then put('parts', whole(#parts)) elseif funds then put('max_cost', whole(price - later_price)) end
    chains.begin(id, chain)
  end

  if at_once and not ruled then -- without the steps into the line and out of it
    local debt = call('ZSCORE', keys.debts(q, m), u)
    local start = num(debt or lane.v)
    if start <= lane.v then
      if start < lane.v then note_lift(q, m, u, lane.v - start) end
      start, lane.v = lane.v, lane.v + 1
    end
    lane.lifts = lane.lifts + lane.tag - lane.idle_tag
    fields[#fields + 1], fields[#fields + 2] = 'granted_tasks', id
    local grant = { replica = replica, worker = worker, upstream = upstream, nonce = nonce, number = 1, ms = grant_ms }
    local data = begin(id, t, lane, start, false, false, grant, {}, fields)
    if want > 1 then idle_for({ m }, replica) end
    unpark_for(t)
    return { 'ok', 'executing', NOWHERE, NOW, { describe(id, t, t.top_seq, data) }, {}, m, asked, left }
  end

  call('HSET', key, 'state', 'queued', unpack(fields))
  call('ZADD', keys.due(), wait_instant(t), id)
  if parts[1] then chains.queue_parts(id, t, parts, wait_over) else enqueue(id, t) end
  local grants, ids, later = {}, {}, {}
  if want > 0 then
    grants, ids, later = take({ m }, want, replica, worker, upstream, nonce, grant_ms)
    if #ids > 0 then call('HSET', key, 'granted_tasks', table.concat(ids, ',')) end
    for _, granted in ipairs(ids) do
      if granted == id then return { 'ok', 'executing', NOWHERE, NOW, grants, later, m, asked, left } end
    end
  elseif ruled or lane.held > NOW or lane.has_breaker then
    wake_or_note(m, later)
  elseif lane.limit == 0 or call('ZCARD', keys.slots(m)) < lane.limit then
    wake_one(m)
  end
  return { 'ok', 'queued', place(id, t), NOW, grants, later, m, asked, left }
end)
