-- Lanes and flows: start-time fair queueing at two levels. A lane (a queue of one model) and a flow (one user in a lane) each
-- have a start tag; the smallest is served, then its tag advances by cost / weight. One that returns from idle is lifted to
-- the virtual time: the largest start tag served so far (Goyal, Vin, Cheng: Start-time Fair Queuing, 1996), or to the least of
-- those that wait, if that is less: these were charged before their tasks ran, and got back what was too much. (So Sheng et al.,
-- Fairness in Serving Large Language Models, 2024, lift to the least counter of those that wait.)
--
-- An idle flow keeps its tag in `debts` while it is ahead of the virtual time or has tasks running. A lift forgives what the
-- flow (or lane) owes less than others: what is settled later, of an attempt that began before the lift, counts only beyond
-- it. So each lift is added up (field lane_lifts:queue), and an attempt remembers the sum at its beginning.
--
-- A flow whose user runs as many tasks as it may is parked: out of the line, its tag kept in `parked`. It returns, lifted like
-- one that was idle, when a task of the user ends. A lane that was passed over, because its queue may not run more now, is
-- lifted when it is served again (field lane_skipped:queue): no lane saves up turns while it may not start. A lane that is served out of
-- turn, because it has slots reserved, is lowered to where its turn would be: no lane pays later for what was reserved.
--
-- Tags count in 4,096ths of cost / weight, whole numbers, which are exact and quick to write.
local tag_step, flow_weight, lane_weight, model_step, read_drain, drain_until_now, drain_after_grant,
  note_lift, flow_comes, lift_lane, enqueue, park, forget_at_limit, dequeue, cool_down_name, name_cooldown_until, set_aside,
  open_account, read_account, read_books, lifts_of, lifts_seen, charge, close_account, forget_idle_flows, forget_excess
do
function tag_step(cost, weight) return math.floor(cost * 4096 / weight + 0.5) end

function flow_weight(t)
  local weight = num(t.weight)
  return weight > 0 and weight or 1
end

-- The weight of a queue, as stored.
function lane_weight(stored)
  local weight = num(stored)
  return weight > 0 and weight or 1
end

-- How far a model moves in the line of the models that a worker is shared among: the time that its task will hold a slot, as
-- far as is known, by the number of users who wait for it. So workers' time goes to models in proportion to their users.
function model_step(mean_ms, users) return math.max(num(mean_ms), 1) * 4096 / math.max(num(users), 1) end

-- How fast a lane's tasks leave while some wait: departures and the ms that they took, both fading with a half-life of about
-- twenty seconds, and the instant of the last one: three numbers, packed. `drain_after_grant` counts one,
-- `drain_resumes` begins to count time again.
local FADE_MS = 30000

function read_drain(stored)
  if not stored then return 0, 0, NOW end
  return struct.unpack('<ddd', stored)
end

-- Departures until now and the ms they took, faded.
function drain_until_now(stored)
  local count, time, last = read_drain(stored)
  local passed_ms = math.max(NOW - last, 0)
  local kept = passed_ms > 0 and math.exp(0 - passed_ms / FADE_MS) or 1
  return count * kept, time * kept + passed_ms
end

function drain_after_grant(stored)
  local count, time = drain_until_now(stored)
  return struct.pack('<ddd', count + 1, time, NOW)
end

local function drain_resumes(stored)
  local count, time = read_drain(stored)
  return struct.pack('<ddd', count, time, NOW)
end

-- Lift an idle flow to the virtual time, and remember by how much as long as something of it runs.
function note_lift(q, m, u, amount)
  if call('EXISTS', keys.busy(q, m, u)) == 1 then call('ZINCRBY', keys.lifts(q, m), whole(amount), u) end
end

-- The least tag of those that wait; nil: none does.
local function least_of(line)
  local first = call('ZRANGE', line, '0', '0', 'WITHSCORES')
  return first[2] and tonumber(first[2])
end

-- A flow comes into line, with the tag that it had (in `from`) or lifted, and its lane too if it was idle. Flows that come at
-- the same virtual time stand in line: each moves it by one, so that no name sorts before another for ever; and so they do behind
-- the least tag, by their number.
function flow_comes(q, m, u, from)
  local model, flows = keys.model(m), keys.flows(q, m)
  local s = call('HMGET', model, 'lane_vtime:' .. q, 'users')
  local v, least = num(s[1]), least_of(flows)
  local tag = call('ZSCORE', from, u)
  if tag then call('ZREM', from, u) end
  local floor = least and least < v and math.min(v, least + call('ZCARD', flows)) or v
  local start = tonumber(tag or floor)
  if start <= floor then
    if start < floor then note_lift(q, m, u, floor - start) end
    if floor == v then v = v + 1 end
    start = floor
  end
  call('ZADD', flows, whole(start), u)
  local users = whole(num(s[2]) + 1)
  if least then
    call('HSET', model, 'lane_vtime:' .. q, whole(v), 'users', users)
    return
  end
  local lane = call('HMGET', model, 'virtual_time', 'lane_tag:' .. q, 'lane_lifts:' .. q, 'drain:' .. q, 'turn')
  local V, lane_tag, lifts = num(lane[1]), num(lane[2]), num(lane[3])
  V = math.min(V, least_of(keys.lanes(m)) or V)
  call('ZADD', keys.lanes(m), whole(math.max(V, lane_tag)), q)
  call('HSET', model, 'lane_vtime:' .. q, whole(v), 'users', users, 'drain:' .. q, drain_resumes(lane[4]),
    'lane_lifts:' .. q, whole(lifts + math.max(V - lane_tag, 0)))
  call('ZADD', keys.backlog(), 'NX', lane[5] or '0', m)
end

-- Lift a waiting lane that had to stand back to the virtual time. Returns its tag, and the sum of its lifts.
function lift_lane(q, m)
  local s, tag = call('HMGET', keys.model(m), 'virtual_time', 'lane_lifts:' .. q), tonumber(call('ZSCORE', keys.lanes(m), q))
  local lift = math.max(num(s[1]) - tag, 0)
  local lifts = num(s[2]) + lift
  if lift > 0 then
    call('ZADD', keys.lanes(m), whole(tag + lift), q)
    call('HSET', keys.model(m), 'lane_lifts:' .. q, whole(lifts))
  end
  return tag + lift, lifts
end

-- A waiting task with fallback models is in a line of these (fallback.lua).
local function add_to_fallbacks(id, t)
  if not t.fallbacks then return end
  call('ZADD', keys.fallbacks(t.model), t.order, id)
  call('SADD', keys.fallback_models(), t.model)
end

-- Put a task into its flow, and wake up flow and lane if they were idle.
function enqueue(id, t)
  local q, m, u = t.queue, t.model, t.user
  count_waiting(t, '1')
  add_to_fallbacks(id, t)
  local flow = keys.flow(q, m, u)
  call('ZADD', flow, t.order, id)
  if call('ZCARD', flow) == 1 then flow_comes(q, m, u, keys.debts(q, m)) end
  call('HINCRBY', keys.model(m), 'waiting:' .. q, '1')
  call('HINCRBY', keys.queue(q), 'waiting', '1')
end

-- A lane without flows in line keeps its tag.
local function lane_idles(q, m, lane_tag)
  local lanes = keys.lanes(m)
  lane_tag = lane_tag or call('ZSCORE', lanes, q)
  call('ZREM', lanes, q)
  call('HSET', keys.model(m), 'lane_tag:' .. q, lane_tag)
  if call('EXISTS', lanes) == 0 then call('ZREM', keys.backlog(), m) end
end

-- Take the first user of a lane out of the line until one of its tasks ends.
function park(q, m, u, tag)
  local flows = keys.flows(q, m)
  call('ZREM', flows, u)
  call('ZADD', keys.parked(q, m), tag, u)
  call('HINCRBY', keys.model(m), 'users', '-1')
  if call('EXISTS', flows) == 0 then lane_idles(q, m) end
end

-- A parked flow comes back, or ends: it is held no more (user_concurrency.lua).
function forget_at_limit(q, m, u)
  local key, user = subjects_of(u)
  for _, subject in ipairs({ key, user }) do
    if call('ZREM', keys.at_limit_flows(q, m, subject), u) == 1 and call('EXISTS', keys.at_limit_flows(q, m, subject)) == 0 then
      call('HDEL', keys.at_limit_lanes(subject), q .. ':' .. m)
      if call('EXISTS', keys.at_limit_lanes(subject)) == 0 then call('ZREM', keys.at_limit(), subject) end
    end
  end
end

-- Take a waiting task out of its flow, ungranted, or from where it stands aside; idle flows and lanes keep their tags.
function dequeue(id, t)
  local q, m, u = t.queue, t.model, t.user
  local flow = keys.flow(q, m, u)
  local in_flow = call('ZREM', flow, id) == 1
  if not in_flow and call('ZREM', keys.aside(), id) == 0 then return end
  count_waiting(t, '-1')
  if t.fallbacks then call('ZREM', keys.fallbacks(m), id) end
  call('HINCRBY', keys.model(m), 'waiting:' .. q, '-1')
  call('HINCRBY', keys.queue(q), 'waiting', '-1')
  if not in_flow then
    if call('HINCRBY', keys.aside_of(q), u, '-1') <= 0 then call('HDEL', keys.aside_of(q), u) end
    return
  end
  if call('EXISTS', flow) == 1 then return end
  local flows, parked = keys.flows(q, m), keys.parked(q, m)
  local tag = call('ZSCORE', flows, u)
  if not tag then
    call('ZADD', keys.debts(q, m), call('ZSCORE', parked, u), u)
    call('ZREM', parked, u)
    forget_at_limit(q, m, u)
    return
  end
  call('ZREM', flows, u)
  call('ZADD', keys.debts(q, m), tag, u)
  call('HINCRBY', keys.model(m), 'users', '-1')
  if call('EXISTS', flows) == 0 then lane_idles(q, m) end
end

-- The provider of one of the names that share the line of '*' wants no request for a while. That holds for this name alone: its
-- tasks stand aside, out of their flows but counted among those that wait, and the sweep brings them back.
function cool_down_name(name, ms)
  local until_ms = math.max(num(call('GET', keys.name_cooldown(name))), NOW + ms)
  call('SET', keys.name_cooldown(name), whole(until_ms), 'PX', whole(until_ms - NOW))
end

-- The instant (ms) until which the name of a task is held; nil: it is not.
function name_cooldown_until(t)
  local until_ms = t.requested_model and num(call('GET', keys.name_cooldown(t.requested_model))) or 0
  return until_ms > NOW and until_ms or nil
end

-- A task that is in no flow stands aside.
function set_aside(id, t, until_ms)
  count_waiting(t, '1')
  add_to_fallbacks(id, t)
  call('ZADD', keys.aside(), whole(until_ms), id)
  call('HINCRBY', keys.aside_of(t.queue), t.user, '1')
  call('HINCRBY', keys.model(t.model), 'waiting:' .. t.queue, '1')
  call('HINCRBY', keys.queue(t.queue), 'waiting', '1')
end

-- The account of an attempt, one field of its record: cost charged, lane's weight, lifts of lane and flow so far, tokens
-- counted for the model's pace, and '1' if it is counted among the running tasks of its queue.
function open_account(cost, weight, lane_lifts, flow_lifts, tokens, counted)
  return string.format('%d %s %d %d %d %s', cost, weight, lane_lifts, flow_lifts, tokens, counted)
end

function read_account(text)
  local cost, weight, lane_lifts, flow_lifts, tokens, counted = string.match(text, '(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)')
  return {
    cost = num(cost), weight = weight, lane_lifts = num(lane_lifts), flow_lifts = num(flow_lifts), tokens = num(tokens),
    counted = counted,
  }
end

-- What settling needs of a lane and its model: `unit` of cost, `users` in line, what is learned (means), `v` of the lane, and what
-- it is charged by: its start `tag` (valid while it is idle), sum of `lifts`, cost `charged` so far.
function read_books(m, q)
  local unit, users, mean_output, mean_ms, pace, v, tag, lifts, charged, top, ups =
    unpack(call('HMGET', keys.model(m), 'cost', 'users', 'mean_output', 'mean_ms', 'mean_speed', 'lane_vtime:' .. q,
      'lane_tag:' .. q, 'lane_lifts:' .. q, 'charged:' .. q, 'longest_output',
      'upstream_state'))
  return {
    unit = unit, users = num(users), mean_output = mean_output, mean_ms = mean_ms, pace = pace, v = num(v), tag = num(tag),
    lifts = num(lifts), charged = num(charged), top = num(top), ups = ups,
  }
end

-- The lifts of a flow so far; nil when there are none.
function lifts_of(q, m, u) return call('ZSCORE', keys.lifts(q, m), u) or nil end

-- What counts of a later charge (or refund), after lifts of `lifted` since the first one; less than 0: it was lowered.
local function beyond(step, lifted)
  if lifted > 0 then return math.max(step - lifted, 0) end
  return step < 0 and math.min(step - lifted, 0) or step
end

-- The lifts that an attempt remembers after a charge of `step`: what they forgave of it, they do not forgive again.
function lifts_seen(seen, step, lifts_now) return seen + math.max(math.min(step, lifts_now - seen), 0) end

local function move_in(line, step, member) return call('ZADD', line, 'XX', 'INCR', step, member) end

-- Charge (or refund) `more` of an attempt to its flow and lane, idle ones too. `account`: of the attempt; `flow_lifts`: as they are
-- now. Returns what has changed in its model's hash, for the caller to store.
function charge(t, more, account, flow_lifts, books)
  local q, m, u = t.queue, t.model, t.user
  local lane_step = beyond(tag_step(more, lane_weight(account.weight)), books.lifts - account.lane_lifts)
  local flow_step = whole(beyond(tag_step(more, flow_weight(t)), num(flow_lifts) - account.flow_lifts))
  local changed, in_line = { 'charged:' .. q, whole(books.charged + more) }, false
  if books.users > 0 and move_in(keys.lanes(m), whole(lane_step), q) then
    in_line = move_in(keys.flows(q, m), flow_step, u)
  else
    changed[3], changed[4] = 'lane_tag:' .. q, whole(books.tag + lane_step)
  end
  local debts = keys.debts(q, m)
  if not in_line and not move_in(debts, flow_step, u) and not move_in(keys.parked(q, m), flow_step, u) then
    call('ZADD', debts, flow_step, u)
  end
  return changed
end

-- Close an attempt's account: charge (or refund) the difference between `used` and the estimate; nil: the estimate stands. Returns
-- what has changed in its model's hash, for the caller to store, and the tokens that were counted for the model's pace.
function close_account(t, used, books)
  local q, m, u = t.queue, t.model, t.user
  local flow_lifts, account = lifts_of(q, m, u), read_account(t.account)
  local more = used and used - account.cost or 0
  local changed = more ~= 0 and charge(t, more, account, flow_lifts, books) or {}
  if flow_lifts and call('EXISTS', keys.busy(q, m, u)) == 0 then call('ZREM', keys.lifts(q, m), u) end
  return changed, account.tokens
end

-- Forget a few idle flows that the virtual time of their lane has passed, and the first of those that wait: they would be lifted so
-- far anyway. Of those that still have tasks running only the lift is remembered.
function forget_idle_flows(q, m, books)
  local debts, v = keys.debts(q, m), books.v
  if books.users > 0 then v = math.min(v, least_of(keys.flows(q, m)) or v) end
  for _ = 1, 4 do
    local least = call('ZRANGE', debts, '0', '0', 'WITHSCORES')
    local u = least[1]
    if not u or tonumber(least[2]) >= v then return end
    if call('EXISTS', keys.busy(q, m, u)) == 0 then
      call('ZREM', debts, u)
    else
      call('ZINCRBY', keys.lifts(q, m), whole(v - tonumber(least[2])), u)
      call('ZADD', debts, whole(v), u)
    end
  end
end

-- Of more than 1,000 idle flows of a lane those that owe least are forgotten, at most `most` now: where most users come once, the
-- virtual time passes no flow. Returns how many it looked at.
function forget_excess(q, m, most)
  local debts = keys.debts(q, m)
  local excess = call('ZCARD', debts) - 1000
  if excess <= 0 or most <= 0 then return 0 end
  local users = call('ZRANGE', debts, 0, math.min(excess, most) - 1)
  for _, u in ipairs(users) do
    if call('EXISTS', keys.busy(q, m, u)) == 0 then call('ZREM', debts, u) end
  end
  return #users
end
end
