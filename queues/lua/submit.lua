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
  call('HINCRBY', pool, 'bytes', -#payload)
  return { 'full_bytes' }
end

call('SET', key_payload(id), payload)
if num(s[8]) < US - 60000000 then call('ZADD', key_models(), NOW, m) end
call('ZADD', key_recent(), NOW, id)
local t = {
  st = 'queued', q = q, m = m, u = u, ty = task_type, en = NOW, pb = #payload, tl = keep_ms,
  ['or'] = string.format('%.3f', US / 1000 - 2000 * priority),
}
if key_id ~= '' then t.k = key_id end
if est_input ~= '0' then t.ei = est_input end
if weight ~= '1.0' then t.w = weight end
if priority > 0 then t.pr = priority end
if max_output ~= '0' then t.mo = max_output end
if timeout_ms > 0 then t.dl = NOW + timeout_ms end
if wait_ms > 0 then t.wd = NOW + wait_ms end
if run_ms > 0 then t.rl = run_ms end
if linger_ms > 0 then
  t.lg = linger_ms
  t.lv = NOW + linger_ms
end
if waiting == '1' then t.wt = '1' end
if stream == '1' then t.sf = '1' end
if metadata ~= '' then t.md = metadata end
if follow == '1' then t.rd = replica end

local function store()
  local fields = {}
  for field, value in pairs(t) do
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
  call('HSET', key, unpack(fields))
end

if at_once then -- what enqueue and grant_next would do for the only task of the model, without the steps between
  local lane_start = max(V, lane_tag)
  lane_lifts = lane_lifts + lane_start - lane_tag
  local flow_start, next_v = flow_returns(q, m, u, v)
  t.lw, t.ll, t.lf = lane_weight(queue[3]), lane_lifts, num(call('ZSCORE', key_lifts(q, m), u))
  t.ch = expected_cost(t, s[2], s[3])
  call('ZADD', key_debts(q, m), flow_start + t.ch / flow_weight(t), u)
  call('HSET', model, 'V', lane_start, 'v:' .. q, max(next_v, flow_start), 'S:' .. q, lane_start + t.ch / t.lw,
    'L:' .. q, lane_lifts, 'used', US)
  t.ng = id
  local start = begin_attempt(id, t, replica, worker, nonce .. ':1', grant_ms)
  store()
  if want > 1 then idle_for({ m }, replica) end
  return { 'ok', 'executing', 0, 0, NOW, { describe(id, t, '1-1', start) } }
end

store()
call('ZADD', key_look(), wait_instant(t), id)
enqueue(id, t)
local grants, ids = {}, {}
if want > 0 then
  grants, ids = take({ m }, want, replica, worker, nonce, grant_ms)
  if #ids > 0 then call('HSET', key, 'ng', table.concat(ids, ',')) end
  for _, granted in ipairs(ids) do
    if granted == id then return { 'ok', 'executing', 0, 0, NOW, grants } end
  end
else
  wake(m)
end
local position, eta = place(id, t)
return { 'ok', 'queued', position, eta, NOW, grants }
