-- Lanes and flows: start-time fair queueing at two levels. A lane (a queue of one model) and a flow (one user in a lane) each have a
-- start tag. The smallest is served, and its tag advances by cost / weight. A flow or lane that was idle is lifted to the virtual time,
-- which is the largest start tag served so far (Goyal, Vin, Cheng: Start-time Fair Queuing, 1996), or to the smallest waiting tag if that is
-- less, because waiting flows were charged in advance and can get a refund. (Sheng et al., Fairness in Serving Large Language Models,
-- 2024, also lift to the smallest counter of the waiting clients.)
--
-- A lift cancels the credit of a flow (or lane) that was served less than others. If an attempt that began before the lift is charged more
-- afterwards, only the part beyond the lift counts. Therefore lifts are summed while tasks of a flow run, and each attempt stores the sums
-- at its start (`account`).
--
-- A flow whose tasks cannot start because of its user (a limit, for example) is parked: it leaves the line and keeps its tag. When it
-- returns, it is lifted like an idle one. A lane that was passed over is lifted when it is served again, so no lane saves up turns while it
-- cannot start. A lane that is served out of turn, because it has reserved slots, is lowered to the tag at which its turn would be.
--
-- Tags are in units of 1/4096 of cost / weight, rounded to whole numbers, so that sums are exact.
local lanes = {}
local LEARNED_S = 3600 -- the means of a user are used for this long
local FADE_MS = 30000
local users, changed = table_of_script(), table_of_script()

-- The stored form of a user in a lane: the flow's `tag` while it is neither in line nor parked; its `lifts` while its tasks run; numbers of
-- tasks that are `running`, in the flow (`waiting`) and set aside (`aside`); the means `output` (tokens) and `ms`; and `at`, when the last task
-- began or stopped (s).
local USER = '<dddddddd'

local function pack_user(user)
  return struct.pack(USER, user.tag, user.lifts, user.running, user.waiting, user.aside, user.output, user.ms, user.at)
end

-- Return the field of a user of a lane in its model's hash, and its queue and name again.
local function field_of(queue, name) return 'user:' .. queue .. ':' .. name end

local function read_field(field) return string.match(field, '^user:([^:]*):(.*)$') end

function lanes.flush()
  for user in pairs(changed) do models.write(user.model, field_of(user.queue, user.name), pack_user(user)) end
end

-- Return a user from its stored form. `packed`: nil if there is none; then all numbers are 0.
local function unpack_user(queue, model, name, packed)
  local tag, lifts, running, waiting, aside, output, ms, at = 0, 0, 0, 0, 0, 0, 0, 0
  if packed then tag, lifts, running, waiting, aside, output, ms, at = struct.unpack(USER, packed) end
  if at < NOW / 1000 - LEARNED_S then output, ms = 0, 0 end
  return { queue = queue, model = model, name = name, tag = tag, lifts = lifts, running = running, waiting = waiting, aside = aside,
    output = output, ms = ms, at = at }
end

-- Return a user of a lane. `packed`: its stored form, if the caller has read it.
function lanes.user(queue, model, name, packed)
  for i = 1, #users do
    local user = users[i]
    if user.name == name and user.queue == queue and user.model == model then return user end
  end
  if not packed then packed = select(2, models.get(model, field_of(queue, name))) end
  local user = unpack_user(queue, model, name, packed)
  users[#users + 1] = user
  return user
end

-- Write a user when the script ends.
function lanes.save_user(user) changed[user] = true end

-- Return the user of a task, in its lane.
function lanes.user_of(task) return lanes.user(task.queue, task.model, task.user) end

function lanes.step(cost, weight) return math.floor(cost * 4096 / weight + 0.5) end

function lanes.flow_weight(task) return task.weight and task.weight > 0 and task.weight or 1 end

-- Return the step by which a model moves back in the line of models that share workers: the expected time in a slot divided by the number
-- of waiting users. So models get workers' time in proportion to their users.
function lanes.model_step(model)
  return math.max(model.mean_ms or 0, 1) * 4096 / math.max(model.users, 1)
end

-- Return how fast tasks leave a lane while others wait: the number of departures and the ms that they took, until the last departure or
-- `until_now`. Both decay with a half-life of about twenty seconds.
function lanes.departures(lane, until_now)
  local gone = lane.gone
  if not until_now then return gone[1], gone[2] end
  local passed_ms = math.max(NOW - gone[3], 0)
  local kept = math.exp(0 - passed_ms / FADE_MS)
  return gone[1] * kept, gone[2] * kept + passed_ms
end

-- Count a departure (1), or restart the clock (0).
local function depart(lane, by)
  local count, ms = lanes.departures(lane, by == 1)
  lane.gone = { count + by, ms, NOW }
end

-- Return the least tag of a line's flows; nil: none waits.
local function least_tag(line) return tonumber(call('ZRANGE', line, '0', '0', 'WITHSCORES')[2]) end

-- Return the least tag of the lanes with flows in line; nil: there is none.
function lanes.least_lane(model)
  local least
  for _, lane in pairs(models.lanes(model)) do
    if lane.users > 0 and (not least or lane.tag < least) then least = lane.tag end
  end
  return least
end

-- Add up the lifts of a flow while its tasks run.
local function note_lift(user, amount)
  if user.running > 0 then user.lifts = user.lifts + amount end
end

-- Return the start tag of a flow that joins the line: its own tag, or the lane's virtual time, or just behind the smallest waiting tag
-- (`least`). Each flow that joins at the virtual time moves it by one, so that flows with equal tags keep the order in which they joined
-- instead of the order of their names.
function lanes.start_tag(lane, user, tag, least, in_line)
  local v = lane.v
  local floor = least and least < v and math.min(v, least + in_line) or v
  if tag > floor then return tag end
  if tag < floor then note_lift(user, floor - tag) end
  if floor == v then lane.v = v + 1 end
  return floor
end

-- Put a flow into its lane's line, with this tag or a lifted one. If the lane was idle, it joins the lanes of its model.
function lanes.join(queue, model_name, user, tag)
  local model = models.get(model_name)
  local lane, flows = models.lane(model, queue), keys.flows(queue, model_name)
  local start = lanes.start_tag(lane, user, tag, lane.users > 0 and least_tag(flows) or nil, lane.users)
  call('ZADD', flows, whole(start), user.name)
  user.tag = 0
  if lane.users == 0 then
    local start = math.min(model.virtual_time, lanes.least_lane(model) or model.virtual_time)
    lane.lifts = lane.lifts + math.max(start - lane.tag, 0)
    lane.tag = math.max(start, lane.tag)
    depart(lane, 0)
    if model.users == 0 then call('ZADD', keys.backlog(), 'NX', whole(model.turn or 0), model_name) end
  end
  lane.users, model.users = lane.users + 1, model.users + 1
  models.save(model_name)
  lanes.save_user(user)
end

-- Take a flow out of its lane's line.
local function leave(queue, model_name, user_name)
  local model = models.get(model_name)
  local lane = models.lane(model, queue)
  call('ZREM', keys.flows(queue, model_name), user_name)
  lane.users, model.users = lane.users - 1, model.users - 1
  if model.users == 0 then call('ZREM', keys.backlog(), model_name) end
  models.save(model_name)
end

-- Lift a waiting lane that was passed over to the virtual time.
function lanes.lift(model, lane)
  local lift = math.max(model.virtual_time - lane.tag, 0)
  lane.tag, lane.lifts = lane.tag + lift, lane.lifts + lift
end

local function count(task, user, by)
  local lane = models.lane(models.get(task.model), task.queue)
  lane.waiting = lane.waiting + by
  models.count_waiting(task.queue, by)
  models.save(task.model)
  lanes.save_user(user)
  hooks.each('queued', task, by)
end

-- Return the head start of a task's priority, us.
function lanes.head_start(task) return 2000000 * math.max(math.min(task.priority or 0, 5), 0) end

-- Put a task into its flow, and flow and lane into line if they were idle.
function lanes.enqueue(task)
  local user = lanes.user_of(task)
  task.order = task.order or 1000 * task.enqueued_at - lanes.head_start(task)
  call('ZADD', keys.flow(task.queue, task.model, task.user), whole(task.order), task.id)
  user.waiting = user.waiting + 1
  if user.waiting == 1 then lanes.join(task.queue, task.model, user, user.tag) end
  count(task, user, 1)
end

-- Set a task that is in no flow aside until an instant (ms). It still counts as waiting.
function lanes.set_aside(task, until_ms)
  local user = lanes.user_of(task)
  call('ZADD', keys.aside(), whole(until_ms), task.id)
  user.aside = user.aside + 1
  count(task, user, 1)
end

-- Remove a waiting task from its flow, or from those set aside, without a grant. Idle flows and lanes keep their tags.
function lanes.dequeue(task)
  local queue, model, user = task.queue, task.model, lanes.user_of(task)
  if call('ZREM', keys.flow(queue, model, task.user), task.id) == 0 then
    if call('ZREM', keys.aside(), task.id) == 0 then return end
    user.aside = user.aside - 1
  else
    user.waiting = user.waiting - 1
    if user.waiting == 0 then
      local tag = call('ZSCORE', keys.flows(queue, model), task.user)
      if tag then
        leave(queue, model, task.user)
      else
        tag = lanes.unpark_tag(queue, model, task.user)
      end
      user.tag = tonumber(tag)
    end
  end
  count(task, user, -1)
end

-- Remove the first task of a flow because it gets a slot. `tag`: of the flow. If the flow has other tasks, it stays in line, `step` further
-- back.
function lanes.depart(task, tag, step)
  local queue, model, user = task.queue, task.model, lanes.user_of(task)
  call('ZREM', keys.flow(queue, model, task.user), task.id)
  user.waiting = user.waiting - 1
  depart(models.lane(models.get(model), queue), 1)
  if user.waiting > 0 then
    call('ZADD', keys.flows(queue, model), whole(tag + step), task.user)
  else
    leave(queue, model, task.user)
    user.tag = tag + step
  end
  count(task, user, -1)
end

-- Park a flow: it leaves the line and keeps its tag.
function lanes.park(queue, model, user, tag)
  leave(queue, model, user)
  call('ZADD', keys.parked(queue, model), tag, user)
end

-- Remove a flow from the parked ones and return its tag; nil: it is not parked.
function lanes.unpark_tag(queue, model, user)
  local parked = keys.parked(queue, model)
  local tag = call('ZSCORE', parked, user)
  if not tag then return nil end
  call('ZREM', parked, user)
  return tonumber(tag)
end

-- Put a parked flow back into line. Return whether it was parked.
function lanes.unpark(queue, model, user)
  local tag = lanes.unpark_tag(queue, model, user)
  if tag then lanes.join(queue, model, lanes.user(queue, model, user), tag) end
  return tag ~= nil
end

-- Return the part of a later charge (or refund) that counts after lifts of `lifted` since the attempt began; `lifted` < 0: it was lowered.
local function beyond(step, lifted)
  if lifted > 0 then return math.max(step - lifted, 0) end
  return step < 0 and math.min(step - lifted, 0) or step
end

-- Charge (or refund) `more` of a running attempt to its flow and lane, even if they are idle.
function lanes.charge(task, more)
  local queue, name, account = task.queue, task.model, task.account
  local user, model = lanes.user_of(task), models.get(name)
  local lane = models.lane(model, queue)
  local lane_step = lanes.step(more, account.weight)
  local flow_step = lanes.step(more, lanes.flow_weight(task))
  lane.tag = lane.tag + beyond(lane_step, lane.lifts - account.lane_lifts)
  lane.charged = lane.charged + more
  local move = beyond(flow_step, user.lifts - account.flow_lifts)
  local function move_in(line) return call('ZADD', line, 'XX', 'INCR', whole(move), user.name) end
  if user.waiting == 0 then
    user.tag = user.tag + move
  elseif move ~= 0 and not move_in(keys.flows(queue, name)) then
    move_in(keys.parked(queue, name))
  end
  -- a lift cancels the same charge only once
  account.lane_lifts = account.lane_lifts + math.max(math.min(lane_step, lane.lifts - account.lane_lifts), 0)
  account.flow_lifts = account.flow_lifts + math.max(math.min(flow_step, user.lifts - account.flow_lifts), 0)
  account.cost = account.cost + more
  models.save(name)
  lanes.save_user(user)
end

-- After a task gave its slot back and its account is closed, reset what no later charge needs. The hour for which tag and means are kept
-- begins now, however long the task ran.
function lanes.stopped(task)
  local user = lanes.user_of(task)
  user.at = math.floor(NOW / 1000)
  if user.running == 0 then user.lifts = 0 end
  lanes.save_user(user)
end

-- Call a function with each user that a part of a model's hash has: a flat list of fields and values.
function lanes.users_in(model_name, flat, visit)
  for i = 1, #flat, 2 do
    local queue, name = read_field(flat[i])
    if queue then visit(lanes.user(queue, model_name, name, flat[i + 1])) end
  end
end

-- Remove users of a model without tasks in the last hour. Check a part of the users: all within about ten minutes of one call a second, so
-- that however many come, those of about an hour are kept. Return the cursor to continue at; '0' at the end.
function lanes.tidy(model_name, cursor)
  local key = keys.model(model_name)
  local most = math.min(math.max(math.floor(call('HLEN', key) / 600), 20), 1000)
  local found, gone = call('HSCAN', key, cursor, 'COUNT', whole(most)), {}
  lanes.users_in(model_name, found[2], function(user)
    local idle = user.running + user.waiting + user.aside == 0
    if idle and user.at < NOW / 1000 - LEARNED_S then gone[#gone + 1] = field_of(user.queue, user.name) end
  end)
  if gone[1] then call('HDEL', key, unpack(gone)) end
  return found[1]
end

unit_of_work[#unit_of_work + 1] = lanes
return lanes
