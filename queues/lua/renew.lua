-- renew: keep the leases of running tasks, and the interest of their readers
-- KEYS[1]  prefix of the pool
-- ARGV[1]  lease length, ms
-- ARGV[2]  grace behind a deadline, ms
-- ARGV[3]  number of tasks held
-- ARGV[4…] task id, epoch, grant token, worker, 1: it has begun, tokens of output so far (-1 unknown), of each task held; then
--          the ids of tasks that have readers here
-- returns  for each task held: 1 renewed | 0 over: stop it | 2 ended from outside: stop it and say when it stopped
script('renew', 'allow-oom', function(ARGV)
  local lease, grace, held = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
  local replies = {}

  -- Charge a running task what it should have paid for by now: it need not end to be paid for.
  local function charge_running(id, f, output)
    local t = { m = f[4], q = f[8], u = f[9], w = f[10], ac = f[11], mo = f[14] }
    local s = call('HMGET', keys.model(t.m), 'cost', 'S:' .. t.q, 'L:' .. t.q, 'c:' .. t.q, 'pace')
    local unit, due = s[1], nil
    if unit == 'slot_seconds' then
      due = NOW - num(f[13])
    elseif unit ~= 'requests' and output >= 0 then
      due = token_cost(f[12], output_due(t, output, s[5]))
    end
    local charged, weight, lane_lifts, own_lifts, tokens, counted = read_account(t.ac)
    local more = due and due - tonumber(charged) or 0
    if more <= 0 then return end
    local lifts = lifts_of(t.q, t.m, t.u)
    local changed = charge(t, more, weight, lane_lifts, own_lifts, lifts, s[2], s[3], s[4])
    call('HSET', keys.model(t.m), unpack(changed))
    lane_lifts = lifts_seen(lane_lifts, tag_step(more, lane_weight(weight)), s[3])
    own_lifts = lifts_seen(own_lifts, tag_step(more, flow_weight(t)), lifts)
    call('HSET', keys.task(id), 'ac', open_account(due, weight, lane_lifts, own_lifts, tokens, counted))
  end

  local at = 4
  for i = 1, held do
    local id = ARGV[at]
    local key = keys.task(id)
    local f = call('HMGET', key, 'st', 'ep', 'gt', 'm', 'xd', 'lv', 'bg', 'q', 'u', 'w', 'ac', 'ei', 'ga', 'mo')
    if f[2] ~= ARGV[at + 1] or f[3] ~= ARGV[at + 2] then
      replies[i] = 0
    elseif f[1] ~= 'executing' then
      replies[i] = 2
    else
      local lease_end = NOW + lease
      local deadline = num(f[5])
      if deadline > 0 then lease_end = math.min(lease_end, deadline + grace) end
      call('ZADD', keys.slots(f[4]), whole(lease_end), id)
      call('ZADD', keys.look(), run_instant({ xd = f[5], lv = f[6] }, lease_end), id)
      if not f[7] then
        call('HSET', key, 'wk', ARGV[at + 3])
        if ARGV[at + 4] == '1' then
          call('HSET', key, 'bg', '1')
          call('HINCRBY', key, 'tr', 1)
        end
      end
      charge_running(id, f, tonumber(ARGV[at + 5]))
      replies[i] = 1
    end
    at = at + 6
  end
  for i = at, #ARGV do
    local id = ARGV[i]
    local f = call('HMGET', keys.task(id), 'st', 'lg', 'wd', 'dl', 'xd', 'm')
    if f[2] and (f[1] == 'queued' or f[1] == 'executing') then
      local leave = whole(NOW + num(f[2]))
      call('HSET', keys.task(id), 'lv', leave)
      local instant
      if f[1] == 'queued' then
        instant = wait_instant({ wd = f[3], dl = f[4], lv = leave })
      else
        instant = run_instant({ xd = f[5], lv = leave }, num(call('ZSCORE', keys.slots(f[6]), id)))
      end
      call('ZADD', keys.look(), instant, id)
    end
  end
  return replies
end)
