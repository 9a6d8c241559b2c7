-- submit: put a task into its lane, and take for the submitting replica's free slots, by the rule: an older task may come first
-- KEYS[1]  prefix of the pool: every key derives from it
-- ARGV     names below
-- returns  {'ok', state, position, wait ms, enqueued ms, grants} | {'full', waiting, limit} | {'full_bytes'} |
--          {'no_worker', 1 = workers offer other models} | {'cancelled'} it was cancelled before it came
-- Repeating it returns the same grants while they hold. Adds before anything else, so that a full Redis refuses it whole.
local id, q, m, u = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key_id, task_type, priority = ARGV[5], ARGV[6], max(min(tonumber(ARGV[7]), 5), 0)
local est_input, max_output, weight = ARGV[8], ARGV[9], ARGV[10]
local timeout_ms, wait_ms, run_ms = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local keep_ms, linger_ms, waiting, stream = ARGV[14], tonumber(ARGV[15]), ARGV[16], ARGV[17]
local metadata, payload = ARGV[18], ARGV[19]
local replica, want, nonce, grant_ms = ARGV[20], tonumber(ARGV[21]), ARGV[22], tonumber(ARGV[23])
local default_length, byte_limit, follow, worker = tonumber(ARGV[24]), tonumber(ARGV[25]), ARGV[26], ARGV[27]

local key = key_task(id)
if call('EXISTS', key) == 1 then
  local known = load(id)
  if known.st == 'gone' then return { 'cancelled' } end
  local position, eta = 0, 0
  if known.st == 'queued' then position, eta = place(id, known) end
  return { 'ok', known.st, position, eta, known.en, repeat_grants(known.ng, nonce) }
end
if not is_offered(m) then return { 'no_worker', call('ZCOUNT', key_offered(), '(' .. NOW, '+inf') > 0 and 1 or 0 } end
local model, pool = key_model(m), key_pool()
local queue = call('HMGET', key_queue(q), 'n', 'max_length', 'weight')
local s = call('HMGET', model, 'limit', 'cost', 'out', 'V', 'v:' .. q, 'S:' .. q, 'L:' .. q, 'used')
local limit, V, v, lane_tag, lane_lifts = num(s[1]), num(s[4]), num(s[5]), num(s[6]), num(s[7])
local at_once = want > 0 and call('EXISTS', key_lanes(m)) == 0 and (limit == 0 or call('ZCARD', key_slots(m)) < limit)
if not at_once then
  local length_limit = num(queue[2])
  if length_limit == 0 then length_limit = default_length end
  if num(queue[1]) >= length_limit then return { 'full', num(queue[1]), length_limit } end
end
if call('HINCRBY', pool, 'bytes', #payload) > byte_limit then
  call('HINCRBY', pool, 'bytes', 0 - #payload)
  return { 'full_bytes' }
end

call('SET', key_payload(id), payload)
if num(s[8]) < US - 60000000 then call('ZADD', key_models(), NOW, m) end
call('ZADD', key_recent(), NOW, id)
local order = string.format('%.3f', US / 1000 - 2000 * priority)
local t = { q = q, m = m, u = u, k = key_id, ty = task_type, en = NOW, ei = est_input, ['or'] = order }
local fields = { 'q', q, 'm', m, 'u', u, 'ty', task_type, 'en', NOW, 'or', order, 'tl', keep_ms, 'pb', #payload }
local function set(name, value)
  fields[#fields + 1] = name
  fields[#fields + 1] = value
  t[name] = value
end
if key_id ~= '' then set('k', key_id) end
if est_input ~= '0' then set('ei', est_input) end
if weight ~= '1.0' then set('w', weight) end
if priority > 0 then set('pr', priority) end
if max_output ~= '0' then set('mo', max_output) end
if timeout_ms > 0 then set('dl', NOW + timeout_ms) end
if wait_ms > 0 then set('wd', NOW + wait_ms) end
if run_ms > 0 then set('rl', run_ms) end
if linger_ms > 0 then
  set('lg', linger_ms)
  set('lv', NOW + linger_ms)
end
if waiting == '1' then set('wt', '1') end
if stream == '1' then set('sf', '1') end
if metadata ~= '' then set('md', metadata) end
if follow == '1' then set('rd', replica) end

if at_once then -- what enqueue and grant_next would do for the only task of the model, without the steps between
  local lane_start = max(V, lane_tag)
  lane_lifts = lane_lifts + lane_start - lane_tag
  local flow_start, next_v, debt = flow_returns(q, m, u, v)
  local cost, weight_of_lane = expected_cost(t, s[2], s[3]), lane_weight(queue[3])
  t.ac = open_account(cost, weight_of_lane, lane_lifts, num(debt and call('ZSCORE', key_lifts(q, m), u)))
  call('ZADD', key_debts(q, m), flow_start + tag_step(cost, flow_weight(t)), u)
  call('HSET', model, 'V', lane_start, 'v:' .. q, max(next_v, flow_start),
    'S:' .. q, lane_start + tag_step(cost, weight_of_lane), 'L:' .. q, lane_lifts, 'used', US)
  local start = begin_attempt(id, t, replica, worker, nonce .. ':1', grant_ms)
  call('HSET', key, 'st', t.st, 'at', t.at, 'sq', t.sq, 'gt', t.gt, 'ow', replica, 'wk', worker, 'ga', t.ga, 'xd', t.xd,
    'ac', t.ac, 'ng', id, unpack(fields))
  if want > 1 then idle_for({ m }, replica) end
  return { 'ok', 'executing', 0, 0, NOW, { describe(id, t, '1-1', start) } }
end

call('HSET', key, 'st', 'queued', unpack(fields))
call('ZADD', key_look(), wait_instant(t), id)
enqueue(id, t)
local grants, ids = {}, {}
if want > 0 then
  grants, ids = take({ m }, want, replica, worker, nonce, grant_ms)
  if #ids > 0 then call('HSET', key, 'ng', table.concat(ids, ',')) end
  for _, granted in ipairs(ids) do
    if granted == id then return { 'ok', 'executing', 0, 0, NOW, grants } end
  end
elseif limit == 0 or call('ZCARD', key_slots(m)) < limit then
  wake_one(m)
end
local position, eta = place(id, t)
return { 'ok', 'queued', position, eta, NOW, grants }
