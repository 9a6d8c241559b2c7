-- Grants: a task gets a slot, and an attempt begins.
local granting = {}
local MAX_TAKEN = 64 -- in one script, because Redis serves no other call meanwhile
local MAX_LOOKED_AT = 1000 -- for the same reason, with tasks that cannot start
local grants_left, looks_left -- of the calls of this script
local LEAD = 600000 * 4096 -- ten minutes of a slot

function granting.begin() grants_left, looks_left = MAX_TAKEN, MAX_LOOKED_AT end

-- Return the expected output of a task in tokens: the user's running mean, else the model's, else the request's limit (up to 4,096, as
-- nothing is known yet), else 256.
function granting.expected_output(task, model, user)
  local output = user.output > 0 and user.output or model.mean_output or 0
  local asked = task.max_output or 0
  if output == 0 then output = asked > 0 and math.min(asked, 4096) or 256 end
  return asked > 0 and math.min(output, asked) or output
end

-- Return the output in tokens that a task should have paid for after it has written `output`: these tokens, plus what the model writes in
-- 15 s at its mean speed (256 tokens while that is unknown), but at most the user's running mean or the request's limit. Tasks pay in
-- advance, so that a user who was served less does not get all free slots at the same time. They pay for seconds instead of the whole answer,
-- so that a wrong mean matters little. A task that has written more than the mean pays half as far in advance.
function granting.output_due(task, output, model, user)
  local ahead, asked, likely = (model.mean_speed or 0) * 15, task.max_output or 0, user.output
  if ahead == 0 then ahead = 256 end
  if asked > 0 and (likely == 0 or asked < likely) then likely = asked end
  if likely == 0 then return output + ahead end
  if output > likely then return output + ahead / 2 end
  return math.min(output + ahead, likely)
end

-- Return the cost of a task in tokens, a whole number: input + 2 x output.
function granting.token_cost(input, output)
  return math.max(math.floor(math.min(input or 0, 16777216) + 2 * math.min(output, 4194304) + 0.5), 1)
end

-- Return the charge of a task at its grant, a whole number in its model's unit. tokens: input + 2 x the output due; requests: 1;
-- slot_seconds: the expected duration in ms.
local function first_charge(task, model, user)
  if model.cost == 'requests' then return 1 end
  if model.cost == 'slot_seconds' then
    local ms = user.ms > 0 and user.ms or model.mean_ms or granting.expected_output(task, model, user) * 20
    return math.max(math.floor(ms + 0.5), 1)
  end
  return granting.token_cost(task.input_tokens, granting.output_due(task, 0, model, user))
end

-- Return an epoch, the first part of the ids of the events that follow: the time (us), and larger than any epoch of this task before. The
-- same epoch is never created twice, even if the store lost the record of the first, so no id ever names two events.
function granting.new_epoch(task)
  local last = task.epoch or 0
  return US > last and US or last + 1 + US % 1000000
end

-- Return the instant at which the sweep must check a running task whose lease ends at `lease_end`.
function granting.run_instant(task, lease_end)
  return whole(earlier(earlier(lease_end, task.attempt_deadline), task.linger_at))
end

-- Begin an attempt of a task. `turn`: the turn of its lane (eligible.lua); `tag`: the start tag of its flow; `in_line`: whether the task is in
-- the flow and must leave it. `grant`: the receiver (`replica`, `worker` and its `upstream`), the `token`, and `ms` until the first renewal.
local function begin(task, turn, tag, in_line, grant)
  local name, queue, lane = task.model, task.queue, turn.lane
  local user, model = lanes.user_of(task), models.get(name)
  local cost = first_charge(task, model, user)
  local flow_step = lanes.step(cost, lanes.flow_weight(task))
  local settings = models.queue(queue)
  local weight = settings.weight or 1
  model.virtual_time, lane.v = math.max(model.virtual_time, turn.moves_to), math.max(lane.v, tag)
  lane.tag, lane.charged, lane.running = lane.tag + lanes.step(cost, weight), lane.charged + cost, lane.running + 1
  if in_line then lanes.depart(task, tag, flow_step) else user.tag = tag + flow_step end
  user.running, user.at = user.running + 1, math.floor(NOW / 1000)
  model.used_at = NOW
  models.save(name)
  lanes.save_user(user)
  task.account = { cost = cost, weight = weight, lane_lifts = lane.lifts, flow_lifts = user.lifts }
  if settings.max_running then
    call('SADD', keys.load(queue), task.id)
    task.counted = true
  end

  local deadline, run = task.deadline or 0, task.run_limit or 0
  if run > 0 then deadline = deadline > 0 and math.min(deadline, NOW + run) or NOW + run end
  task.state, task.attempt, task.epoch = 'executing', (task.attempt or 0) + 1, granting.new_epoch(task)
  task.token, task.owner, task.worker = grant.token, grant.replica, grant.worker
  task.upstream = grant.upstream
  task.granted_at, task.attempt_deadline, task.lease = NOW, deadline, NOW + grant.ms
  hooks.each('granted', task, model)
  local data = event_data(task.id, '"attempt":' .. whole(task.attempt) .. ',"model":' .. cjson.encode(task.requested_model or name)
    .. ',"queue":"' .. queue .. '"' .. (task.event_fields or ''))
  log.add(task, task.epoch, 'start', data, task.owner)
  slots.take(name, task.id, task.lease)
  call('ZADD', keys.due(), granting.run_instant(task, task.lease), task.id)
  if grant.begun then grant.begun(task) end
  records.save(task)
  return data
end

-- Begin a submitted task in this turn, without entering the line, because no task waits.
function granting.begin_now(task, turn, grant)
  local lane, user = turn.lane, lanes.user_of(task)
  lane.skipped = nil
  lanes.lift(models.get(task.model), lane)
  turn.moves_to = lane.tag
  return begin(task, turn, lanes.start_tag(lane, user, user.tag), false, grant)
end

-- Mark the lanes that were passed over, and lift the lane whose turn it is if it was passed over before: like one that was idle.
local function lift_skipped(model, turn)
  for _, queue in ipairs(turn.skipped) do models.lane(model, queue).skipped = true end
  if turn.lane.skipped then
    turn.lane.skipped = nil
    lanes.lift(model, turn.lane)
    turn.moves_to = math.max(turn.moves_to, turn.lane.tag)
  end
end

-- Begin the task whose turn it is. A lane that its reserve brought here, out of turn, is charged for this turn alone.
local function begin_in_line(task, turn, tag, grant)
  local model, lane = models.get(task.model), turn.lane
  lift_skipped(model, turn)
  local ahead = math.max(lane.tag - math.max(turn.moves_to, model.virtual_time), 0)
  lane.tag, lane.lifts = lane.tag - ahead, lane.lifts - ahead
  return begin(task, turn, tonumber(tag), true, grant)
end

-- Grant the next task of a model: it leaves its lane and an attempt begins, or nothing changes. A task whose time to wait is over, or whose
-- record is lost, only leaves its lane; the sweep ends it. The hook `may_start` returns why a task cannot start:
--   {at = ms}          the model starts nothing until then; with `upstream`, only through this upstream
--   {aside = ms}       the task is set aside until then
--   {park = function}  its flow is parked; the function is called afterwards
--   {alone = grant}    the task needs no worker and begins with this grant; `grant.begun` is called
-- Return the task, the data of its start event, and the turn; or nil and the reason.
local function grant_next(name, grant)
  while grant.looks > 0 do
    grant.looks = grant.looks - 1
    local turn, at = eligible.turn(name)
    if not turn then return nil, { at = at } end
    local model, queue = models.get(name), turn.queue
    if grant.token then
      lift_skipped(model, turn)
      models.save(name)
    end
    local user, tag = unpack(call('ZRANGE', keys.flows(queue, name), '0', '0', 'WITHSCORES'))
    local id = call('ZRANGE', keys.flow(queue, name, user), '0', '0')[1]
    local task = records.load(id)
    local why = task and hooks.first('may_start', task, grant)
    if not task then
      lanes.dequeue({ id = id, queue = queue, model = name, user = user })
    elseif passed(task.wait_deadline) or passed(task.deadline) then -- (not `linger_at`: a reader may still move it)
      lanes.dequeue(task)
    elseif why and why.aside then
      lanes.dequeue(task)
      lanes.set_aside(task, why.aside)
    elseif why and why.park then
      lanes.park(queue, name, user, tag)
      why.park(queue, name, user, tonumber(tag))
    elseif why and why.alone then
      begin_in_line(task, turn, tag, why.alone)
    elseif why then
      return nil, why
    elseif not grant.token then
      return nil, {}
    else
      return task, begin_in_line(task, turn, tag, grant), turn
    end
  end
  return nil, {}
end

-- Start the tasks at the head of a model's line that need no worker, up to MAX_TAKEN. Return whether there may be more.
function granting.start_alone(name)
  local grant = { looks = MAX_TAKEN }
  grant_next(name, grant)
  return grant.looks == 0
end

-- Return the models of `names` ('*' alone: every model) with waiting tasks, in the order of their line, as {model, place}; and if models share
-- workers, the key of the place that these workers served last. A model is moved to that place at least, so that idle models save up no turns,
-- and to LEAD behind it at most.
local function line_of(names)
  if #names == 1 and names[1] ~= '*' then return { { names[1], 0 } } end
  local line, last = {}, 0
  if names[1] == '*' then
    local flat = call('ZRANGE', keys.backlog(), '0', '999', 'WITHSCORES')
    for i = 1, #flat, 2 do
      if not is_reserved(flat[i]) then line[#line + 1] = { flat[i], tonumber(flat[i + 1]) } end
    end
  else
    for _, name in ipairs(names) do
      local place = call('ZSCORE', keys.backlog(), name)
      if place then line[#line + 1] = { name, tonumber(place) } end
    end
  end
  local shared = keys.line(redis.sha1hex(table.concat(names, '\n')))
  for _, entry in ipairs(line) do last = math.max(last, entry[2]) end
  last = tonumber(call('GET', shared) or last)
  for _, entry in ipairs(line) do
    entry[3], entry[2] = entry[2], math.min(math.max(entry[2], last), last + LEAD)
    if entry[2] < entry[3] then granting.stand(entry[1], entry[2]) end
  end
  table.sort(line, function(a, b)
    if a[2] ~= b[2] then return a[2] < b[2] end
    if a[3] ~= b[3] then return a[3] < b[3] end
    return a[1] < b[1]
  end)
  return line, shared
end

-- Store a model's place in the line of models.
function granting.stand(name, place)
  models.get(name).turn = place
  models.save(name)
  call('ZADD', keys.backlog(), 'XX', whole(place), name)
end

-- Add a grant to a reply: the two parts of the record, and the data of its start event.
local function add_grant(grants, task, run, start)
  grants[#grants + 1] = run
  grants[#grants + 1] = task.spec_text
  grants[#grants + 1] = start
end

-- Take up to `ask.want` tasks for a worker that serves `ask.models` ({'*'}: every model), in the order of the models' line. If slots stay
-- free, the replica is remembered as idle, so that the next task wakes it. If replicas could still start tasks of these models or of `freed` (a
-- model with a slot that became free in this script), they are woken. Return the grants, their ids, and `later` (waking.lua).
function granting.take(ask, freed)
  local grants, ids, later = {}, {}, {}
  local want = math.min(ask.want, grants_left)
  local grant = { replica = ask.replica, worker = ask.worker, upstream = ask.upstream, ms = ask.grant_ms, looks = looks_left }
  local waiting, shared = line_of(ask.models)
  while #ids < want and grant.looks > 0 and waiting[1] do
    local entry = table.remove(waiting, 1)
    local name = entry[1]
    grant.token = ask.nonce .. ':' .. whole(#ids + 1)
    local task, start, turn = grant_next(name, grant)
    if task then
      ids[#ids + 1] = task.id
      add_grant(grants, task, records.packed(task), start)
      if shared then
        call('SET', shared, whole(entry[2]), 'EX', '3600')
        entry[2] = entry[2] + lanes.model_step(models.get(name))
        granting.stand(name, entry[2])
      end
      if turn.last then
        if name == freed then freed = nil end
      else
        local at = #waiting + 1 -- back into the line
        while at > 1 and waiting[at - 1][2] > entry[2] do at = at - 1 end
        table.insert(waiting, at, entry)
      end
    else
      local why = start
      if name == freed and not why.upstream then freed = nil end
      if why.at and why.at < FOREVER then waking.note_later(later, name, why.at, why.upstream) end
      if grant.looks == 0 then table.insert(waiting, 1, entry) end
    end
  end
  grants_left, looks_left = grants_left - #ids, grant.looks
  if #ids < math.min(ask.want, MAX_TAKEN) then waking.idle(ask.models, ask.replica) end
  for i = 1, math.min(#waiting, 16) do
    local name = waiting[i][1]
    if name == freed then freed = nil end
    waking.wake(name, later)
  end
  if freed then waking.wake(freed) end
  return grants, ids, later
end

-- Return the grants of `ids` that a call with this nonce made and that are still valid, because the reply of that call was lost.
function granting.repeat_grants(ids, nonce)
  local grants = {}
  for _, id in ipairs(ids or {}) do
    local task = records.load(id)
    if task and task.state == 'executing' and string.find(task.token, nonce .. ':', 1, true) == 1 then
      local entry = call('XRANGE', keys.log(id), whole(task.epoch), '+', 'COUNT', 1)[1]
      log.close(task)
      add_grant(grants, task, cmsgpack.pack(task), entry and entry[2][4] or '')
      if task.first_output_at then log.open(task) end
    end
  end
  return grants
end

-- Take as `take` does, for calls without a record that could store the ids of what they granted. These ids are stored longer than a grant
-- lasts unrenewed, since a sweep may prolong grants.
function granting.take_once(ask, freed)
  local before = call('GET', keys.taken(ask.nonce))
  if before then return granting.repeat_grants(cmsgpack.unpack(before), ask.nonce), {} end
  local grants, ids, later = granting.take(ask, freed)
  if #ids > 0 then call('SET', keys.taken(ask.nonce), cmsgpack.pack(ids), 'PX', whole(5 * ask.grant_ms)) end
  return grants, later
end

unit_of_work[#unit_of_work + 1] = granting
return granting
