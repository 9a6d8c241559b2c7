-- advance_chain: complete a stage of a chain, or a part of one, begin what follows, and take tasks for the freed slot
-- KEYS[1]  prefix of the pool
-- ARGV[1…] task id, epoch of the grant, grant token; seq of the first event (0: the caller is not the log's writer)
-- ARGV[5…] tokens of input and output, -1 unknown, and what else is known of them
-- ARGV[8…] replica, nonce of this call, grant length (ms), slots to fill, worker they are for, its upstream
-- ARGV[14] result of the stage or part
-- ARGV[15] bytes that plan, head and results of a chain take at most
-- ARGV[16…] how many events, how many events of the chain's log that follow them when the chain continues, how many models the worker has
-- ARGV[19…] these events, type and data of each; those models
-- ARGV     what follows: nothing | 'entry', and the next stage (stages.lua) | 'end', state, failure code, the terminal event's type and
--          data; of the stage that could not begin its number (-1: there is none), name, model and queue
-- returns  {outcome, id of the first event of the chain's log that it wrote, or '', grants, top, later, more, accounts of tasks that ended with
--          it (endings.lua)}; later: as `take`; outcomes: see chains.py (Advanced), more: of 'moved' the model that the stage waits for, of
--          'quota' and 'no_balance' as submit says it. Repeating it returns the same, until the chain has gone on further.
script('advance_chain', 'allow-oom', function(ARGV)
  local id, epoch, token, seq = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
  local input, output, used = tonumber(ARGV[5]), tonumber(ARGV[6]), { ARGV[5], ARGV[6], ARGV[7] }
  local replica, nonce, grant_ms, want, worker, upstream = ARGV[8], ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]), ARGV[12], ARGV[13]
  local result, most_bytes = ARGV[14], tonumber(ARGV[15])
  local told_at = 19 + 2 * ARGV[16]
  local models_at = told_at + 2 * ARGV[17]
  local then_at = models_at + ARGV[18]
  local follows, models = ARGV[then_at], {}
  for i = models_at, then_at - 1 do models[#models + 1] = ARGV[i] end

  local function reply(outcome, event_id, grants, later, more)
    return { outcome, event_id or '', grants or {}, 0, later or {}, more or {}, chains.related_ends() }
  end

  local t = load(id)
  local current = t and t.epoch == epoch and t.grant_token == token
  if not current or t.state ~= 'executing' then
    local grants, later, freed = {}, {}, nil
    if current and release(id, t, used) then
      settle(t, input, output, false)
      freed = t.model
    end
    if want > 0 then
      grants, later = take_once(models, want, replica, worker, upstream, nonce, grant_ms, freed)
    elseif freed then
      wake(freed)
    end
    if freed then wake_elsewhere(t) end
    local by, outcome, event_id = string.match(t and t.advance or '', '^(%S+) (%S+) (%S*)$')
    if by == nonce then return reply(outcome, event_id, grants, later, { t.requested_model or t.model }) end
    return reply(current and 'late' or 'stale', '', grants, later)
  end

  local top = num(t.top_seq)
  if seq > top + 1 then return { 'hole', '', {}, top, {}, {}, {} } end
  local chain_id, part = t.chain or id, t.chain and select(2, chains.stage_of(t.stage))
  local chain, key = part and load(t.chain) or t, keys.chain(chain_id)
  local by, todo, spent, of_request = unpack(call('HMGET', key, 'stored_bytes', 'todo', 'spent', 'request_bytes'))
  local last = not part or num(todo) <= 1
  if last and not follows then return reply('next') end
  if num(by) - num(of_request) + #result > most_bytes then return reply('too_large') end
  local entry, qt = nil, chain.reserved_credits
  if last and follows == 'entry' then
    local why
    entry = chains.read_entry(ARGV, then_at + 1)
    qt, why = chains.admit(chain, entry, num(spent) + chains.cost_of_attempt(t, used))
    if why then return reply(why[1], '', {}, {}, { why[2], why[3] }) end
  end

  local freed, before = t.model, { queue = t.queue, model = t.model, account = t.account }
  local answered = t.first_output_at
  release(id, t)
  local own = log_last_events(id, t, seq, ARGV, 19, told_at - 1, replica)
  if t.first_output_at ~= answered then call('HSET', keys.task(id), 'first_output_at', t.first_output_at) end
  upstreams.note(t, true, '', settle(t, input, output, true, entry ~= nil))
  chains.keep_result(chain_id, t, result, used, num(by))

  local outcome, event_id, more = 'waits', '', {}
  if part then
    call('HINCRBY', key, 'todo', '-1')
    end_task(id, t, 'completed', 'done', event_data(id, '"result":null'), '', nonce, nil, nil, own, used)
    own = nil
  end
  if last then
    local told, log_epoch = {}, own or new_epoch(chain)
    for i = told_at, models_at - 1, 2 do
      local number = whole(num(chain.top_seq) + 1)
      told[#told + 1] = log_epoch .. '-' .. number
      call('XADD', keys.log(chain_id), told[#told], 'type', ARGV[i], 'data', ARGV[i + 1])
      publish_event(chain.readers, chain_id, told[#told], ARGV[i], ARGV[i + 1], replica)
      chain.top_seq, chain.epoch = number, log_epoch
    end
    event_id = told[1]
    if entry then
      if not part then record_usage(id, t, used, true) end
      if chain.top_seq then call('HSET', keys.task(chain_id), 'top_seq', chain.top_seq, 'epoch', chain.epoch) end
      outcome, more = 'moved', { chains.enter(chain_id, chain, entry, qt) }
    else
      local state, code, kind, data = unpack(ARGV, then_at + 1, then_at + 4)
      local number, name, model, queue = unpack(ARGV, then_at + 5, then_at + 8)
      if part then
        call('ZREM', keys.due(), chain_id)
        settle_over(chain_id, chain)
      end
      if number ~= '-1' then
        if not part then record_usage(id, t, used, true) end
        chains.fail_stage(chain_id, chain, number, name, model, queue)
      end
      local by_attempt = number == '-1' and not part and used or nil
      local ended = end_task(chain_id, chain, state, kind, data, code, nonce, replica, nil, log_epoch, by_attempt)
      if part then chains.add_related_end(chain_id, chain) end
      outcome, event_id = 'ended', event_id or ended
    end
  end
  event_id = event_id or ''
  call('HSET', keys.task(id), 'advance', nonce .. ' ' .. outcome .. ' ' .. event_id)

  local grants, later = {}, {}
  if want > 0 then
    grants, later = take_once(models, want, replica, worker, upstream, nonce, grant_ms, freed)
  else
    wake_or_note(freed, later)
  end
  if outcome == 'moved' and chain.model ~= freed then wake(chain.model) end
  wake_elsewhere(before)
  return reply(outcome, event_id, grants, later, more)
end)
