-- submit: put a task into its lane, and take tasks for the submitting replica's free slots; an older task can come first
-- args      id; arguments of granting.take: replica, worker, upstream, want, nonce, grant_ms; by_name: the worker offers the model by its name;
--           follow: the replica reads the task's events; max_length: default limit of a queue's waiting tasks; max_bytes: limit of large
--           payloads in the pool
-- strings   the record's spec (keys.py, SPEC), packed; the payload
-- returns   {state, place, enqueued_at, model, asked, later}, and grants | {rejected = reason, …}
-- A repeated call returns the same grants while they are valid.

-- Return the reply for an accepted task.
local function accepted(task, later)
  return { state = task.state, enqueued_at = task.enqueued_at, model = task.model, asked = task.requested_model or task.model, later = later,
    place = task.state == 'queued' and placing.place(task) or nil }
end

-- Reject a task without workers. If workers offered the model a while ago, retry after as long as they have been gone.
local function no_worker(asked)
  local since = math.max(num(call('ZSCORE', keys.offered(), asked)), num(call('ZSCORE', keys.offered(), '*')))
  local others = since == 0 and call('ZCOUNT', keys.offered(), '(' .. NOW_TEXT, '+inf') > 0
  return { rejected = 'no_worker', others_offered = others, retry_ms = since > 0 and math.max(NOW - since, 1000) or 60000 }
end

-- Return the turn in which the task can begin immediately; nil: it has to wait.
local function turn_now(task, grant)
  local user = lanes.user_of(task)
  if task.parts then return nil end
  if user.waiting + user.aside > 0 then return nil end -- behind the user's parked tasks
  local turn = eligible.turn(task.model, task.queue)
  return turn and turn.queue == task.queue and not hooks.first('may_start', task, grant) and turn or nil
end

script('submit', nil, function(ask, args)
  local spec, payload = args[2], args[3]
  local known = records.load(ask.id)
  if known and known.state == 'gone' then return { rejected = 'cancelled' } end
  if known then return accepted(known, {}), unpack(granting.repeat_grants(known.granted or { ask.id }, ask.nonce)) end

  local task, want = records.new(ask.id, spec), ask.want
  local function answer(reply)
    hooks.each('answers', task, reply, ask)
    return reply
  end
  local reply = hooks.first('known', task)
  if reply then return answer(reply) end
  local asked = task.model
  local comes_back = is_reserved(asked) and not task.waiting -- an endpoint: its worker can connect later, or none is needed
  local name = waking.scheduled_as(asked, comes_back or want > 0 and ask.by_name)
  task.enqueued_at, task.order = NOW, US - lanes.head_start(task)
  if name and name ~= asked then task.model, task.requested_model = name, asked end
  local move = hooks.first('route', task, {})
  if move then
    move()
    want = 0 -- the slots are for another model
  elseif not name then
    return answer(no_worker(asked))
  end
  lanes.user_of(task) -- and its model: read before hooks, which depend on its features
  local longest = models.queue(task.queue).max_wait_ms or 0
  if longest > 0 and not task.whole_wait then
    task.wait_ms = (task.wait_ms or 0) > 0 and math.min(task.wait_ms, longest) or longest
  end

  local grant = { replica = ask.replica, worker = ask.worker, upstream = ask.upstream, token = ask.nonce .. ':1', ms = ask.grant_ms }
  local turn = want > 0 and turn_now(task, grant) or nil
  ask.waits, ask.sizes, ask.args = turn == nil, {}, args
  local rejected = hooks.first('admit', task, ask) or (turn == nil and admission.refuse(task, ask)) or nil
  if rejected then return answer(rejected) end
  table.insert(ask.sizes, #payload)
  if not payloads.reserve(task.user, ask.sizes, ask.max_bytes) then
    return answer({ rejected = 'full_bytes', retry_ms = math.max(math.ceil((placing.interval(task.model, task.queue))), 1) })
  end

  records.create(task)
  payloads.store(task, payload)
  if task.timeout_ms then task.deadline = NOW + task.timeout_ms end
  if task.wait_ms then task.wait_deadline = NOW + task.wait_ms end
  if task.linger_ms then task.linger_at = NOW + task.linger_ms end
  if ask.follow then task.readers = ask.replica end
  models.touch(task.model, models.get(task.model))
  hooks.each('accept', task, ask)
  if turn then -- without entering and leaving the line
    local start = granting.begin_now(task, turn, grant)
    task.order = nil
    if want > 1 then waking.idle({ task.model }, ask.replica) end
    return answer(accepted(task, {})), records.packed(task), spec, start
  end

  task.state = 'queued'
  records.save(task)
  call('ZADD', keys.due(), retrying.wait_instant(task), task.id)
  if not hooks.first('enqueue', task, ask) then lanes.enqueue(task) end
  local grants, ids, later = {}, {}, {}
  if want > 0 then
    ask.models, ask.want = { task.model }, want
    grants, ids, later = granting.take(ask)
    task.granted = ids
    records.save(task) -- if it was granted itself, it was packed without them
  else
    waking.wake(task.model, later)
  end
  return answer(accepted(task, later)), unpack(grants)
end, 'many')
