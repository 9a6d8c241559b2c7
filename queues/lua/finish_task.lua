-- finish_task: end a running task and take for the freed slot, over all models its worker serves
-- KEYS[1]  prefix of the pool
-- ARGV     names below; then `events` pairs of type and data (the last flush), the terminal event's type and data,
--          then the worker's models
-- returns  {outcome, terminal event id or '', grants, top, later, accounts of tasks that ended with it (endings.lua): of a part's chain
--          and its other parts}; later: as `take`; outcome: 'ok' | 'late' another call ended it, its
--          slot is free now | 'stale' the grant is not current | 'hole' the log is short of events: it ends at `top`. Repeating it
--          returns the same.
script('finish_task', 'allow-oom', function(ARGV)
  local id, epoch, token = ARGV[1], ARGV[2], ARGV[3]
  local state, code, seq = ARGV[4], ARGV[5], tonumber(ARGV[6]) -- seq of the first event; 0: the caller is not the log's writer
  local input, output = tonumber(ARGV[7]), tonumber(ARGV[8])
  local replica, nonce, grant_ms, want = ARGV[9], ARGV[10], tonumber(ARGV[11]), tonumber(ARGV[12])
  local worker, events = ARGV[13], tonumber(ARGV[14])
  local keep = tonumber(ARGV[15]) -- ms that the slot stays `stopping`, because the worker still runs the task
  local used = { ARGV[7], ARGV[8], ARGV[16] } -- the last: what else is known of the tokens, for the usage record
  local upstream = ARGV[17] -- of the worker
  local terminal = 18 + 2 * events
  local models = {}
  for i = terminal + 2, #ARGV do models[#models + 1] = ARGV[i] end

  local t = load(id) or {}
  if t.chain and state == 'completed' then error('a part of a chain completes by advance') end
  local current = t.epoch == epoch and t.grant_token == token
  if current and t.state == 'executing' then
    local top, answered = num(t.top_seq), t.first_output_at
    if seq > top + 1 then return { 'hole', '', {}, top, {}, {} } end
    if keep == 0 then release(id, t) end
    local own = log_last_events(id, t, seq, ARGV, 18, terminal - 1, replica)
    if t.first_output_at ~= answered then t.unsaved = { 'first_output_at', t.first_output_at } end
    local books = keep == 0 and settle(t, input, output, state == 'completed') or nil
    local works = state == 'completed' or upstreams.verdict_of(id, code)
    if works ~= nil then upstreams.note(t, works, code, works and books or nil) end
    local stop_until = keep > 0 and NOW + keep or nil
    local event_id = end_task(id, t, state, ARGV[terminal], ARGV[terminal + 1], code, nonce, replica, stop_until, own, used)
    if keep > 0 then return { 'ok', event_id, {}, 0, {}, chains.related_ends() } end
    if want == 0 then
      local later = wake_or_note(t.model, {})
      wake_elsewhere(t)
      return { 'ok', event_id, {}, 0, later, chains.related_ends() }
    end
    local grants, ids, later = take(models, want, replica, worker, upstream, nonce, grant_ms, t.model)
    wake_elsewhere(t)
    if #ids > 0 then call('HSET', keys.task(id), 'granted_tasks', table.concat(ids, ',')) end
    return { 'ok', event_id, grants, 0, later, chains.related_ends() }
  end
  if current and t.end_nonce == nonce then return { 'ok', t.end_id, repeat_grants(t.granted_tasks, nonce), 0, {}, {} } end

  local freed
  if current and keep == 0 and release(id, t, used) then
    settle(t, input, output, false)
    freed = t.model
  end
  local grants, later = {}, {}
  if want > 0 then
    grants, later = take_once(models, want, replica, worker, upstream, nonce, grant_ms, freed)
  elseif freed then
    wake(freed)
  end
  if freed then wake_elsewhere(t) end
  return { current and 'late' or 'stale', '', grants, 0, later, {} }
end)
