-- Hooks: the only way in which a feature takes part in a task's life. A feature names a field, and its function is called for tasks that
-- have it (or for models, where the hook is about these). The order of calls is the order in which the features are loaded (scripts.py),
-- which also decides between two rejections.
--
--   known(task)                submit: a reply, where the request is known or is not to be answered; it writes nothing
--   answers(task, reply, ask)  submit: it adds to what is returned
--   route(task, back)          submit, requeue (`back`): a function that moves the task to another model, or nil; it writes nothing
--   admit(task, call)          submit: it returns a rejection, or nil; it writes nothing. `call`: the arguments of submit
--   accept(task, call)         submit, behind every `admit`: it writes, and adds fields to the record
--   enqueue(task, ask)         submit: true where the feature has put the task into line itself
--   queued(task, by)           a task enters (1) or leaves (-1) its line
--   opens(model, name, n)      nil, or the instant (ms) from which the n-th task (1) of a model may start, and why: 'cooldown', 'open' or
--                              'probing' (upstreams.lua), or 'unsent': it is no earlier, and a report wakes a replica; it writes nothing
--   starts(model, name)        a wake-up: the feature starts tasks that need no worker; true where it may have more of them
--   serves(model, name, queue) true where the feature runs tasks of the lane without a worker
--   expects(model, name, task, n, interval)  interval and least delay (ms) of the n-th task where it knows better (placing.lua)
--   place(task)                the place of a task that stands in no line
--   may_start(task, grant)     take: nil, or why a task may not start (granting.lua); it writes nothing
--   granted(task, model)       take
--   output(task)               append: the first output of an attempt
--   finishes(task, ask)        finish, before anything is written
--   failed(task, back)         requeue, before the task goes back (retrying.lua)
--   attempted(task, code)      an attempt has an outcome: a failure's code, or nil
--   redone(task, used)         an answer is asked for again
--   falls(task)                whether another model may run a task
--   released(task)             a slot is given back: once per attempt
--   settled(task, used, ran)   an attempt is settled: once. `used`: nil where it is refunded; `ran`: it completed
--   expired(task, ends)        the lease of a running task is over: true where the feature has ended it
--   ended(task, finish, more)  a task has its terminal event: once; it may hold a slot still (`more`: see ending.lua)
--   closed(task)               a task has ended and holds no slot: once, before its usage is recorded. It may prolong `keep_ms`
--   configured(now, name, before), unset(before, name, now)  the settings of a model changed, for each setting that it has or had
--   sweep_often(ask), sweep(ask)  each sweep, and once a second: bounded; it returns whether there is more
local hooks = {}
local listed = {
  known = {}, answers = {}, route = {}, admit = {}, accept = {}, enqueue = {}, queued = {}, opens = {}, starts = {}, serves = {}, place = {}, expects = {}, may_start = {}, granted = {},
  output = {}, finishes = {}, failed = {}, attempted = {}, redone = {}, falls = {}, moved = {}, expired = {}, released = {}, settled = {}, ended = {}, closed = {}, deleted = {}, configured = {}, unset = {}, sweep = {}, sweep_often = {},
}

-- A task that uses no feature has no field `extras`, nor has its model: then nothing is looked at but that.
--
-- Attach a function to a hook, for tasks (or models) with this field; nil: for all. `of_model`: for tasks of models with it. (A library that
-- is loaded has neither `pairs` nor `table`.)
function hooks.attach(name, field, run, of_model)
  local list = listed[name]
  list[#list + 1] = { field = field, of_model = of_model, run = run }
  if not field then list.for_all = true end
end

local function concerns(hook, task)
  local field = hook.field
  if not field then return true end
  if not hook.of_model then return task[field] end
  if not models.get(task.model)[field] then return false end
  task.extras = true -- what the feature does now it may have to undo, whatever becomes of the model
  return true
end

-- Call a hook for a task. Return the first answer that is not nil.
function hooks.first(name, task, ...)
  local list = listed[name]
  if not (list.for_all or models.extras or task.extras) then return nil end
  for i = 1, #list do
    local hook = list[i]
    if concerns(hook, task) then
      local answer, more = hook.run(task, ...)
      if answer ~= nil then return answer, more end
    end
  end
end

-- Call a hook of every feature that a task uses.
function hooks.each(name, task, ...)
  local list = listed[name]
  if not (list.for_all or models.extras or task.extras) then return end
  for i = 1, #list do
    local hook = list[i]
    if concerns(hook, task) then hook.run(task, ...) end
  end
end

-- Call a hook for each setting that a model has.
function hooks.settings(name, values, ...)
  for _, hook in ipairs(listed[name]) do
    if values[hook.field] ~= nil then hook.run(values, ...) end
  end
end

-- Return what the first feature says of a sweep.
function hooks.sweep_reply(name)
  local hook = listed[name][1]
  return hook and hook.run()
end

-- Call a hook of the sweep. Return whether a feature has more to do.
function hooks.sweep(name, budget)
  local more = false
  for _, hook in ipairs(listed[name]) do more = hook.run(budget) or more end
  return more
end

return hooks
