-- renew_leases: keep the leases of running tasks, and the interest of their readers
-- KEYS[1]  prefix of the pool
-- ARGV[1]  lease length, ms
-- ARGV[2]  grace behind a deadline, ms
-- ARGV[3]  number of tasks held
-- ARGV[4…] task id, epoch, grant token, worker, 1: it has begun, tokens of output so far (-1 unknown), of each task held; then
--          the ids of tasks that have readers here
-- returns  for each task held: 1 renewed | 0 over: stop it | 2 ended from outside: stop it and say when it stopped
script('renew_leases', 'allow-oom', function(ARGV)
  local lease, grace, held = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local replies = {}

  -- Charge a running task what it should have paid for by now: it need not end to be paid for.
  local function charge_running(id, t, output)
    local books, due = read_books(t.model, t.queue), nil
    if books.unit == 'slot_seconds' then
      due = NOW - num(t.granted_at)
    elseif books.unit ~= 'requests' and output >= 0 then
      due = token_cost(t.input_tokens, output_due(t, output, books.pace))
    end
    local account = read_account(t.account)
    local more = due and due - account.cost or 0
    if more <= 0 then return end
    local flow_lifts = num(lifts_of(t.queue, t.model, t.user))
    call('HSET', keys.model(t.model), unpack(charge(t, more, account, flow_lifts, books)))
    local lane_seen = lifts_seen(account.lane_lifts, tag_step(more, lane_weight(account.weight)), books.lifts)
    local flow_seen = lifts_seen(account.flow_lifts, tag_step(more, flow_weight(t)), flow_lifts)
    call('HSET', keys.task(id), 'account',
      open_account(due, account.weight, lane_seen, flow_seen, account.tokens, account.counted))
  end

  local at = 4
  for i = 1, held do
    local id = ARGV[at]
    local key = keys.task(id)
    local state, epoch, token, m, xd, lv, begun, q, u, w, ac, ei, ga, mo, pc =
      unpack(call('HMGET', key, 'state', 'epoch', 'grant_token', 'model', 'attempt_deadline', 'linger_at', 'begun', 'queue',
        'user', 'weight', 'account', 'input_tokens', 'granted_at', 'max_output', 'price'))
    if epoch ~= ARGV[at + 1] or token ~= ARGV[at + 2] then
      replies[i] = 0
    elseif state ~= 'executing' then
      replies[i] = 2
    else
      local lease_end = NOW + lease
      local t = { model = m, queue = q, user = u, weight = w, attempt_deadline = xd, linger_at = lv, account = ac,
        input_tokens = ei, granted_at = ga, max_output = mo }
      local deadline = num(xd)
      if deadline > 0 then lease_end = math.min(lease_end, deadline + grace) end
      call('ZADD', keys.slots(m), whole(lease_end), id)
      call('ZADD', keys.due(), run_instant(t, lease_end), id)
      if not begun then
        call('HSET', key, 'worker', ARGV[at + 3])
        if ARGV[at + 4] == '1' then
          call('HSET', key, 'begun', '1')
          call('HINCRBY', key, 'tries', 1)
        end
      end
      local output = tonumber(ARGV[at + 5])
      charge_running(id, t, output)
      -- the known usage of a task with a price, in case its worker never reports it
      if pc and output >= 0 then call('HSET', key, 'usage', (ei or '0') .. ' ' .. whole(output) .. ' -1 -1 1') end
      replies[i] = 1
    end
    at = at + 6
  end
  for i = at, #ARGV do
    local id = ARGV[i]
    local state, linger, wd, dl, xd, m, stranded = unpack(call('HMGET', keys.task(id), 'state', 'linger', 'wait_deadline',
      'deadline', 'attempt_deadline', 'model', 'stranded_until'))
    if linger and (state == 'queued' or state == 'executing') then
      local leave = whole(NOW + num(linger))
      call('HSET', keys.task(id), 'linger_at', leave)
      local instant
      if state == 'queued' then
        instant = wait_instant({ wait_deadline = wd, deadline = dl, linger_at = leave, stranded_until = stranded })
      else
        instant = run_instant({ attempt_deadline = xd, linger_at = leave }, num(call('ZSCORE', keys.slots(m), id)))
      end
      call('ZADD', keys.due(), instant, id)
    end
  end
  return replies
end)
