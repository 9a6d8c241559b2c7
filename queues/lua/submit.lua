-- submit: put a task into its lane, and take for the submitting replica's free slots, by the rule: an older task may come first
-- uses: waking lanes granting ending placing
-- KEYS[1]  prefix of the pool: every key derives from it
-- ARGV     names below
-- returns  {'ok', state, position, wait ms, enqueued ms, grants} | {'full', waiting, limit} | {'full_bytes'} |
--          {'no_worker', 1 = workers offer other models} | {'cancelled'} it was cancelled before it came
-- Repeating it returns the same grants while they hold. Adds before anything else, so that a full Redis refuses it whole.
local id, q, m, u = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local key_id, task_type, priority = ARGV[5], ARGV[6], tonumber(ARGV[7])
local est_input, max_output, flow_weight = ARGV[8], ARGV[9], ARGV[10]
local timeout_ms, wait_ms, run_ms = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local keep_ms, linger_ms, waiting, stream = ARGV[14], tonumber(ARGV[15]), ARGV[16], ARGV[17]
local metadata, payload = ARGV[18], ARGV[19]
local replica, want, nonce, grant_ms = ARGV[20], tonumber(ARGV[21]), ARGV[22], tonumber(ARGV[23])
local default_length, byte_limit, follow = tonumber(ARGV[24]), tonumber(ARGV[25]), ARGV[26]

local known = load(id)
if known then
  if known.st == 'gone' then return { 'cancelled' } end
  local position, eta = 0, 0
  if known.st == 'queued' then position, eta = place(id, known) end
  return { 'ok', known.st, position, eta, known.en, repeat_grants(known.ng, nonce) }
end
if not is_offered(m) then
  return { 'no_worker', call('ZCOUNT', key_offered(), '(' .. int(NOW), '+inf') > 0 and 1 or 0 }
end
local queue = call('HMGET', key_queue(q), 'n', 'max_length')
local length_limit = num(queue[2])
if length_limit == 0 then length_limit = default_length end
if num(queue[1]) >= length_limit then return { 'full', num(queue[1]), length_limit } end
if #payload + num(call('HGET', key_pool(), 'bytes')) > byte_limit then return { 'full_bytes' } end

call('SET', key_payload(id), payload)
local fields = {
  'st', 'queued', 'q', q, 'm', m, 'u', u, 'k', key_id, 'ty', task_type, 'en', int(NOW), 'or', int(NOW - 2000 * priority),
  'ei', est_input, 'w', flow_weight, 'tl', keep_ms, 'pb', #payload,
}
local t = { st = 'queued', q = q, m = m, u = u, k = key_id, ty = task_type, en = int(NOW), ['or'] = int(NOW - 2000 * priority),
  ei = est_input, mo = max_output, w = flow_weight, tl = keep_ms, pb = #payload }
local function set(name, value)
  fields[#fields + 1] = name
  fields[#fields + 1] = value
  t[name] = value
end
if priority > 0 then set('pr', ARGV[7]) end
if max_output ~= '0' then set('mo', max_output) end
if timeout_ms > 0 then set('dl', int(NOW + timeout_ms)) end
if wait_ms > 0 then set('wd', int(NOW + wait_ms)) end
if run_ms > 0 then set('rl', ARGV[13]) end
if linger_ms > 0 then
  set('lg', ARGV[15])
  set('lv', int(NOW + linger_ms))
end
if waiting == '1' then set('wt', '1') end
if stream == '1' then set('sf', '1') end
if metadata ~= '' then set('md', metadata) end
if follow == '1' then set('rd', replica) end
call('HSET', key_task(id), unpack(fields))
call('HINCRBY', key_pool(), 'bytes', #payload)
call('ZADD', key_models(), NOW, m)
call('ZADD', key_recent(), NOW, id)
call('ZREMRANGEBYRANK', key_recent(), 0, -10001)
call('ZADD', key_look(), wait_instant(t), id)
enqueue(id, t)

local grants, ids = {}, {}
if want > 0 then grants, ids = take({ m }, want, replica, ARGV[27], nonce, grant_ms) end
if #ids > 0 then call('HSET', key_task(id), 'ng', table.concat(ids, ',')) end
for _, granted in ipairs(ids) do
  if granted == id then return { 'ok', 'executing', 0, 0, t.en, grants } end
end
if #grants == want then wake(m) end
local position, eta = place(id, t)
return { 'ok', 'queued', position, eta, t.en, grants }
