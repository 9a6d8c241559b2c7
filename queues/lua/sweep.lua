-- sweep: end what is out of time, requeue what its holder lost, repeat wake-ups that may have been lost
-- KEYS[1]  prefix of the pool
-- ARGV[1]  lease length, ms
-- ARGV[2]  grace of a stopping task, ms
-- ARGV[3…] rest fragment and code of each end: timeout, queue timeout, worker lost, no worker, cancelled as its readers left;
--          then the bytes that ended tasks may take; then the end of those that no model can run, as breakers are open; of a permit
--          whose call's end was not reported (rest), and of one that was not used; of those whose time is over during a cooldown
-- returns  {next instant to sweep at (ms), now (ms), tasks looked at, account (endings.lua) of each that ended or went back,
--          ended tasks dropped before their time, {a model, its fallback, and why, how many tasks moved, …}}
-- While Redis was unavailable no replica could renew anything. Sweeps are due once a second, so when one is late by more than half a
-- second, what must be renewed moves by all of the gap but half a second: owners have as long to come back, and yet each pass
-- brings the end of what is not renewed nearer. Whatever is due then ends as ever.
script('sweep', 'allow-oom', function(ARGV)
  local lease, grace = tonumber(ARGV[1]), tonumber(ARGV[2])
  local timeout = { rest = ARGV[3], code = ARGV[4] }
  local queue_timeout = { rest = ARGV[5], code = ARGV[6] }
  local lost = { rest = ARGV[7], code = ARGV[8] }
  local no_worker = { rest = ARGV[9], code = ARGV[10] }
  local left, budget = { rest = ARGV[11], code = ARGV[12] }, tonumber(ARGV[13])
  local unavailable = { rest = ARGV[14], code = ARGV[15] }
  local busy = { rest = ARGV[19], code = ARGV[20] }
  local left_unreported, unused = { rest = ARGV[16] }, { rest = ARGV[17], code = ARGV[18] }
  local failures = { lost = lost, no_worker = no_worker, timeout = timeout }
  local look, pool = keys.due(), keys.pool()
  local before = call('HMGET', pool, 'swept', 'moving', 'away')
  local last, moving, away = num(before[1]), before[2], before[3]
  call('HSET', pool, 'swept', NOW)

  -- 1. After a gap: what must be renewed moves when it is due, and never beyond what a renewal at the gap's end would have given. So
  -- gaps are remembered for as long as anything holds: when each ended, and by how much it moves. A task's field `gap_moved` is the end of
  -- the last one that has moved it.
  local gap = last > 0 and NOW - last or 0
  local gaps = {}
  for ended, by in string.gmatch(away or '', '(%d+) (%d+)') do
    if tonumber(ended) > NOW - math.max(lease, grace) then gaps[#gaps + 1] = { tonumber(ended), tonumber(by) } end
  end
  if gap > 1500 then gaps[#gaps + 1] = { NOW, gap - 500 } end
  if away or gaps[1] then
    local kept = {}
    for i, entry in ipairs(gaps) do kept[i] = whole(entry[1]) .. ' ' .. whole(entry[2]) end
    if kept[1] then call('HSET', pool, 'away', table.concat(kept, ' ')) else call('HDEL', pool, 'away') end
  end

  local function moved(at, by, most) return math.max(at, math.min(at + by, most)) end

  -- Those of a set's members that were alive before the gap and are due in the next five seconds.
  local function move_all(key, from, by)
    local soon = NOW + 5000
    local members = call('ZRANGEBYSCORE', key, '(' .. from, soon, 'WITHSCORES')
    for i = 1, #members, 2 do
      local at = tonumber(members[i + 1])
      call('ZADD', key, moved(at, by, NOW + lease), members[i])
    end
  end

  if gap > 1500 then
    local added = gap - 500
    move_all(keys.replicas(), last, added)
    local from, by = string.match(moving or '', '^%d+ (%d+) (%d+)$')
    moving = '0 ' .. (from or whole(last)) .. ' ' .. whole(added + num(by))
  end

  -- Move a task's time, its lease and its readers' patience, by the gaps since they began. Returns the end of its lease.
  local function after_gaps(id, t, lease_end)
    local seen, granted, enqueued = num(t.gap_moved), num(t.granted_at), num(t.enqueued_at)
    local running = t.state == 'executing'
    for _, entry in ipairs(gaps) do
      local ended, by = entry[1], entry[2]
      if ended > seen then
        t.gap_moved = whole(ended)
        if t.linger_at and ended > enqueued then t.linger_at = whole(moved(num(t.linger_at), by, ended + num(t.linger))) end
        if lease_end > 0 and ended > granted then lease_end = moved(lease_end, by, ended + (running and lease or grace)) end
      end
    end
    if gaps[1] and num(t.gap_moved) > seen then
      call('HSET', keys.task(id), 'gap_moved', t.gap_moved)
      if t.linger_at then call('HSET', keys.task(id), 'linger_at', t.linger_at) end
      if lease_end > 0 then call('ZADD', keys.slots(t.model), lease_end, id) end
    end
    return lease_end
  end

  -- Offers move, too: those of some hundred models in each pass, as there may be many.
  if moving then
    local cursor, from, by = string.match(moving, '^(%d+) (%d+) (%d+)$')
    local found = call('ZSCAN', keys.offered(), cursor, 'COUNT', '500')
    by = tonumber(by)
    for i = 1, #found[2], 2 do
      local model, at = found[2][i], tonumber(found[2][i + 1])
      if at > tonumber(from) and at <= NOW + 5000 then
        call('ZADD', keys.offered(), moved(at, by, NOW + lease), model)
        move_all(keys.offers(model), from, by)
      end
    end
    if found[1] == '0' then
      moving = nil
      call('HDEL', pool, 'moving')
    else
      call('HSET', pool, 'moving', found[1] .. ' ' .. from .. ' ' .. by)
    end
  end

  -- 2. Tasks whose instant has come.
  local function fail(id, t, why, stop_until)
    end_task(id, t, 'failed', 'error', chains.end_data(id, t, 'failed', why.rest), why.code, '', nil, stop_until)
  end

  local function check_queued(id, t)
    local waited, late, stranded = passed(t.wait_deadline), passed(t.deadline), passed(t.stranded_until)
    if stranded then
      call('HDEL', keys.task(id), 'stranded_until')
      t.stranded_until = nil
      stranded = not is_offered(t.requested_model or t.model)
    end
    if not waited and not late and not stranded and not passed(t.linger_at) then
      call('ZADD', look, wait_instant(t), id)
      return
    end
    if late or waited or stranded then
      local why = late and timeout or waited and queue_timeout or no_worker
      local cooldown = (late or waited) and cooldown_of(t.requested_model or t.model) or 0
      if cooldown > 0 then
        why = late_end({ rest = busy.rest .. ',"retryAfterMs":' .. whole(cooldown - NOW), code = busy.code }, 'cooldown')
      elseif late or waited then
        local served = is_offered(t.requested_model or t.model) or permits.is_next(t.model, t.queue)
        why = late_end(why, served and 'queue' or 'worker')
      end
      end_waiting(id, t, 'failed', 'error', chains.end_data(id, t, 'failed', why.rest), why.code)
    else
      if t.idempotency then release_name(id, t) end -- no reader has seen its end
      end_waiting(id, t, 'cancelled', 'cancelled', event_data(id, left.rest), left.code)
    end
  end

  local ran = late_end(timeout, 'model')
  local function check_running(id, t, lease_end)
    if t.permit then
      permits.check(id, t, left_unreported, unused)
    elseif passed(t.attempt_deadline) and lease_end > NOW then
      fail(id, t, ran, NOW + grace)
      request_stop(id, t, 'timeout')
    elseif passed(t.attempt_deadline) then
      release(id, t)
      settle(t, -1, -1, false)
      fail(id, t, ran)
      request_stop(id, t, 'timeout')
    elseif lease_end <= NOW then
      put_back(id, t, 'lease over', 'failed', false, failures, '') -- whose fault it was is not known
    elseif passed(t.linger_at) then
      if t.idempotency then release_name(id, t) end
      end_task(id, t, 'cancelled', 'cancelled', event_data(id, left.rest), left.code, '', nil, NOW + grace)
      request_stop(id, t, 'client')
    else
      call('ZADD', look, run_instant(t, lease_end), id)
    end
  end

  local due = call('ZRANGEBYSCORE', look, '-inf', NOW, 'LIMIT', 0, 100)
  local touched, freed, accounts, told = {}, {}, {}, {}
  for _, id in ipairs(due) do
    local t = load(id)
    local before, its_model, asked = t and t.state, t and t.model, t and (t.requested_model or t.model)
    if not t or before == 'gone' then
      call('ZREM', look, id)
    elseif before == 'queued' then
      after_gaps(id, t, 0)
      check_queued(id, t)
    else
      local lease_end = after_gaps(id, t, num(call('ZSCORE', keys.slots(t.model), id)))
      touched[t.model], freed[t.queue .. ':' .. t.model] = true, t
      if before == 'executing' then
        check_running(id, t, lease_end)
      elseif lease_end > NOW then
        call('ZADD', look, lease_end, id)
      elseif release(id, t) then
        settle(t, -1, -1, false)
      end
    end
    if t and t.state ~= before then
      local account = account_of_end(t, id)
      if t.state == 'queued' then account[2] = its_model end -- the record names the model that it was running on
      accounts[#accounts + 1] = account
      if t.state == 'queued' and (t.requested_model or t.model) ~= asked then note_moved_to_fallback(told, asked, t) end
    end
  end

  -- Tasks that stood aside, of '*' as their name was held, or refused too often.
  local aside = call('ZRANGEBYSCORE', keys.aside(), '-inf', NOW_TEXT, 'LIMIT', '0', '100')
  for _, id in ipairs(aside) do
    local t = load(id)
    if t then
      dequeue(id, t)
      enqueue(id, t)
      touched[t.model] = true
    else
      call('ZREM', keys.aside(), id)
    end
  end
  for model in pairs(touched) do wake(model) end
  for _, t in pairs(freed) do wake_elsewhere(t) end

  local more_fall, told_fallen = sweep_fallbacks(100, told)

  -- 3. Once a second: wake every replica that could start something (a wake-up may have been lost), and tidy up.
  if NOW - num(call('HGET', pool, 'woke')) >= 900 then
    call('HSET', pool, 'woke', NOW)
    continue_settings(200)
    for _, model in ipairs(call('ZRANGE', keys.backlog(), 0, 999)) do
      local lane, at = eligible(model)
      if lane and not at and permits.is_next(model, lane.q) then
        permits.wake(model)
      elseif lane and not at then
        for _, offered in ipairs(offered_as(model)) do
          for _, other in ipairs(call('ZRANGEBYSCORE', keys.offers(offered), '(' .. NOW, '+inf', 'LIMIT', 0, 64)) do
            publish(other, 'wake_all\n' .. model)
          end
        end
      end
    end

    -- Tasks with a waiting caller end if the probes of all upstreams failed and no other model may run them.
    local looks, ended = 500, 0
    local function end_those_who_wait(m)
      if not upstreams.exhausted(m) then return end
      for _, q in ipairs(call('ZRANGE', keys.lanes(m), '0', '-1')) do
        for _, u in ipairs(call('ZRANGE', keys.flows(q, m), '0', '99')) do
          for _, id in ipairs(call('ZRANGE', keys.flow(q, m, u), '0', '99')) do
            if looks == 0 or ended == 100 then return end
            looks = looks - 1
            if call('HGET', keys.task(id), 'waiting') == '1' then
              local t = load(id)
              if t.state == 'queued' and fallbacks_exhausted(t) then -- (a part ends with another one)
                local data = chains.end_data(id, t, 'failed', unavailable.rest)
                end_waiting(id, t, 'failed', 'error', data, unavailable.code)
                accounts[#accounts + 1] = account_of_end(t, id)
                ended = ended + 1
              end
            end
          end
        end
      end
    end
    for _, model in ipairs(call('ZRANGE', keys.backlog(), 0, 999)) do
      if call('HGET', keys.model(model), 'upstream_state') == '2' then end_those_who_wait(model) end
    end

    for _, subject in ipairs(call('ZRANDMEMBER', keys.at_limit(), '100')) do unpark_next(subject) end
    upstreams.tidy()

    local excess = math.min(call('ZCARD', keys.recent()) - 10000, 10000)
    if excess > 0 then call('ZREMRANGEBYRANK', keys.recent(), 0, excess - 1) end
    for _, replica in ipairs(call('ZRANGEBYSCORE', keys.replicas(), '-inf', NOW - 60000, 'LIMIT', 0, 4)) do
      for _, model in ipairs(call('ZRANGE', keys.offered(), 0, 999)) do call('ZREM', keys.idle(model), replica) end
      call('HDEL', keys.versions(), replica)
      call('HDEL', keys.hosts(), replica)
      call('ZREM', keys.replicas(), replica)
    end
    for _, model in ipairs(call('ZRANGEBYSCORE', keys.offered(), '-inf', NOW - 60000, 'LIMIT', 0, 1000)) do
      call('DEL', keys.offers(model), keys.idle(model), keys.serving(model))
      call('ZREM', keys.offered(), model)
    end

    -- Tasks that share the line of '*', which has no worker any more, while workers offer the very models they asked for.
    if call('EXISTS', keys.lanes('*')) == 1 and not is_offered('*') then
      local part = call('ZSCAN', look, call('HGET', pool, 'stranded') or '0', 'COUNT', '100')
      call('HSET', pool, 'stranded', part[1])
      for i = 1, #part[2], 2 do
        local id = part[2][i]
        local f = call('HMGET', keys.task(id), 'model', 'requested_model')
        if f[1] == '*' and f[2] and is_offered(f[2]) then
          local t = load(id)
          if call('ZSCORE', keys.flow(t.queue, t.model, t.user), id) then
            dequeue(id, t)
            enqueue_by_name(id, t)
          end
        end
      end
    end

    local function each_lane(model, act)
      for _, field in ipairs(call('HKEYS', keys.model(model))) do
        local q = string.match(field, '^lane_vtime:(.*)$')
        if q then act(q) end
      end
    end
    local found = call('ZSCAN', keys.models(), call('HGET', pool, 'tidied') or '0', 'COUNT', '100') -- a part of them in each pass
    call('HSET', pool, 'tidied', found[1])
    local models, most_users = found[2], 2000
    for i = 1, #models, 2 do
      local model = models[i]
      if tonumber(models[i + 1]) > NOW - 3600000 then
        each_lane(model, function(q) most_users = most_users - forget_excess(q, model, most_users) end)
      elseif call('EXISTS', keys.lanes(model), keys.slots(model)) > 0
        or num(call('HGET', keys.model(model), 'used')) > US - 3600000000 then
        call('ZADD', keys.models(), NOW, model)
      else
        each_lane(model, function(q) call('DEL', keys.debts(q, model), keys.lifts(q, model), keys.parked(q, model)) end)
        local kept = call('HMGET', keys.model(model), 'fixed', 'upstream_state')
        if not kept[1] and not kept[2] then
          call('DEL', keys.model(model))
          call('ZREM', keys.models(), model)
        end
      end
    end
  end

  -- 4. What ended tasks left behind.
  local dropped, more = keep_within(budget, 500)

  local head = call('ZRANGE', look, 0, 0, 'WITHSCORES')
  local next_at = (more or moving or #aside == 100 or more_fall) and NOW or NOW + 1000
  if head[2] then next_at = math.max(math.min(next_at, tonumber(head[2])), NOW) end
  local back = call('ZRANGE', keys.aside(), 0, 0, 'WITHSCORES')
  if back[2] then next_at = math.max(math.min(next_at, tonumber(back[2])), NOW) end
  for _, account in ipairs(chains.related_ends()) do accounts[#accounts + 1] = account end
  overrides.expire(20)
  return { next_at, NOW, #due, accounts, dropped, told_fallen, overrides.version() }
end)
