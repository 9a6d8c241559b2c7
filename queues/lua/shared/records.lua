-- What has happened and SQL does not know yet: entries of the outbox, which a replica carries there (gateway/records/).
local record_act, record_usage
do
-- Record an action for the audit log. `id`: when, us, and a mark that makes it unique. Returns it.
function record_act(id, who, address, action, target, before, after)
  call('XADD', keys.outbox(), '*', 'audit', cmsgpack.pack({ id, who, address, action, target, before, after }))
  call('HSET', keys.pool(), 'acted', id)
  return id
end

-- What a usage record is made of, from the task's record; `usage`: see keys.py. Behind them stand the task, and what it used; and of a
-- task with a price that, what it cost, and what was paid of it (credits.lua); of one with a route or a template those;
-- of a chain's stage or part which that is (`stage`), and when the chain came into it, and the task is the chain. A task whose answer
-- was repaired used what both took. Last, of one
-- that has ended with this, whether webhooks get that (`webhooks`).
local RECORDED = { 'ended_at', 'enqueued_at', 'granted_at', 'first_output_at', 'state', 'code', 'queue', 'type', 'user',
  'key_id', 'model', 'requested_model', 'worker', 'attempt', 'tries', 'request_id', 'traceparent', 'usage', 'price',
  'reserved_credits', 'route', 'template',
  'repair', 'stage', 'webhooks' }
local TOLD = #RECORDED - 7

-- How a task may end after its first output as its caller likes, who has that output: cancelled (a state), with the code below, or
-- because its time was over (a worker's own limit has the same code, and comes before), or its text does not match the schema; or the gateway
-- had no time to check it, which the caller's many requests may cause, too. Of a part that was cancelled as its chain (`chain`)
-- ended, that end counts.
local AS_CALLERS_LIKE = { OUTPUT_TOO_LARGE = true, NOT_CHECKED = true }
local function as_callers_like(id, entry, pa)
  local ended, state, code = entry[1], entry[5], entry[6]
  if pa and state == 'cancelled' then
    id = pa
    ended, state, code = unpack(call('HMGET', keys.task(pa), 'ended_at', 'state', 'code'))
  end
  if state == 'cancelled' or AS_CALLERS_LIKE[code or ''] then return true end
  if code == 'JSON_PARSE_FAILED' then return call('HEXISTS', keys.task(id), 'schema') == 1 end
  if code ~= 'TOTAL_TIMEOUT' then return false end
  for _, over in ipairs(call('HMGET', keys.task(id), 'deadline', 'attempt_deadline')) do
    if num(over) > 0 and num(ended) >= num(over) then return true end
  end
  return false
end

-- What a task of this entry costs: its price, if it completed; what was used until then, if it ended after its first output and its
-- caller may have caused that end; else nothing. If then no usage is reported, what it was held (`most`; nil:
-- nothing) is paid. `before`: what an answer cost that was repaired; `pa`: of a part its chain.
local function cost_of_entry(id, entry, pc, most, used, before, pa)
  local first_output, state = entry[4], entry[5]
  local stopped = first_output and as_callers_like(id, entry, pa)
  if state ~= 'completed' and not stopped then return 0 end
  local input, output, more = unpack(repairs.used_at_last(used, entry[18]))
  if most and stopped and num(input) < 0 and num(output) < 0 then return most end
  local cached, reasoning
  if more ~= '' then cached, reasoning = string.match(more, '^(%S+) (%S+)') end
  return (pc and cost_of(pc, input, output, cached, reasoning) or 0) + before
end

-- Record a task that has ended and holds no slot any more: once per task. So here it is paid for. `used`: tokens of input and of output,
-- -1 unknown, and what else is known of them, as texts; nil: not reported. `t`: its record as it is now. `done`: a stage of a chain is completed, and the chain goes
-- on: it is paid when it ends, for all its stages.
function record_usage(id, t, used, done)
  local entry = {}
  for i, field in ipairs(RECORDED) do entry[i] = t[field] or false end
  local pc, qt, rt, tm, rp, sg, wh = unpack(entry, TOLD + 1)
  if done then wh = nil end
  local chain, pa, most, only_paid, se
  if sg then
    chain, pa, most, only_paid, se = chains.fill(entry, id, t, done)
    most = most and most + 0
    if done then qt = nil end
  else
    most = reserved_by(qt)
  end
  if only_paid then
    local paid = qt and settle_credits(entry[9], qt, chains.spend(chain, 0)) or ''
    for i = TOLD + 1, #RECORDED do entry[i] = '' end
    entry[TOLD + 1], entry[25] = id, paid
    for i = 26, 28 do entry[i] = wh and '' or nil end
    entry[29] = wh or nil
    if paid ~= '' or wh then call('XADD', keys.outbox(), '*', 'charge', cmsgpack.pack(entry)) end
    return
  end
  local own, before = used, 0
  if rp and rp ~= '1' then used, before = repairs.used_in_all(rp, repairs.used_at_last(used, entry[18])) end
  for i = TOLD + 5, #RECORDED do entry[i] = nil end
  entry[TOLD + 1] = chain or id
  for i = 1, 3 do entry[TOLD + 1 + i] = used and used[i] or '' end
  if pc or qt then -- (one that another model may have answered is held for that, though its own costs nothing)
    local cost = (pc or before > 0) and cost_of_entry(id, entry, pc, most, own, before, pa) or 0
    entry[23], entry[24] = pc or '0 0 0 0 0', whole(cost)
    if chain then cost = chains.spend(chain, cost) end
    entry[25] = qt and settle_credits(entry[9], qt, cost) or ''
  end
  if rt or tm or sg or wh then
    for i = 23, 25 do entry[i] = entry[i] or '' end
    entry[26], entry[27] = rt or '', tm or ''
    if sg then entry[28] = se and sg .. ' ' .. se or sg end
    if wh then entry[28], entry[29] = entry[28] or '', wh end
  end
  call('XADD', keys.outbox(), '*', 'usage', cmsgpack.pack(entry))
end
end
