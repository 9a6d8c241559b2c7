-- finish: end a running task and take for the freed slot, over all models its worker serves
-- uses: waking lanes granting ending
-- KEYS[1]  prefix of the pool
-- ARGV     names below; then `events` pairs of type and data (the last flush), the terminal event's type and data,
--          then the worker's models
-- returns  {outcome, terminal event id or '', grants}; outcome: 'ok' | 'late' somebody else ended it, its slot is free now |
--          'stale' the grant is not current | 'hole' the log is short of events: {…, top}. Repeating it returns the same.
local id, attempt, token = ARGV[1], ARGV[2], ARGV[3]
local state, code, seq = ARGV[4], ARGV[5], tonumber(ARGV[6])
local input, output = tonumber(ARGV[7]), tonumber(ARGV[8])
local replica, nonce, grant_ms, want = ARGV[9], ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12])
local worker, events = ARGV[13], tonumber(ARGV[14])
local at = 15
local models = {}
for i = at + 2 * events + 2, #ARGV do models[#models + 1] = ARGV[i] end

local outcome, event_id = 'stale', ''
local freed
local t = load(id)
if t and t.at == attempt and t.gt == token then
  if t.st == 'executing' then
    local top = num(t.sq)
    if seq > top + 1 then return { 'hole', '', {}, top } end
    release(id, t)
    local log = key_log(id)
    for _ = 1, events do
      if seq > top then
        local chunk_id = attempt .. '-' .. int(seq)
        call('XADD', log, chunk_id, 'type', ARGV[at], 'data', ARGV[at + 1])
        publish_event(t.rd, id, chunk_id, ARGV[at], ARGV[at + 1], replica)
        top = seq
        t.sq = int(top)
      end
      seq = seq + 1
      at = at + 2
    end
    local ms = NOW - num(t.ga)
    local model = key_model(t.m)
    local mean = num(call('HGET', model, 'ms'))
    call('HSET', model, 'ms', mean == 0 and max(ms, 1) or mean + 0.1 * (ms - mean))
    settle(id, t, input, output)
    event_id = end_task(id, t, state, ARGV[at], ARGV[at + 1], code, replica)
    outcome, freed = 'ok', t.m
  elseif t.fn == nonce then
    return { 'ok', t.at .. '-' .. t.sq, repeat_grants(t.ng, nonce) }
  else
    outcome = 'late'
    if release(id, t) then
      settle(id, t, input, output)
      freed = t.m
    end
  end
end
local grants, ids = {}, {}
if want > 0 then grants, ids = take(models, want, replica, worker, nonce, grant_ms) end
if outcome == 'ok' then
  if #ids > 0 then
    call('HSET', key_task(id), 'fn', nonce, 'ng', table.concat(ids, ','))
  else
    call('HSET', key_task(id), 'fn', nonce)
  end
end
if freed then wake(freed) end
return { outcome, event_id, grants }
