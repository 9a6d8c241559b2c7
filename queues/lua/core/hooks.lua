-- Hooks: the only way in which a feature takes part in a task's life. A feature attaches a function with a field; the function is called for
-- tasks that have the field (or for models, if the hook is about models). Functions are called in the order in which features are loaded
-- (FEATURES in scripts.py), which also decides between two rejections.
--
--   known(task)                submit: return a reply if the request is known already or gets no task; write nothing
--   answers(task, reply, ask)  submit: add to the reply
--   route(task, back)          submit, requeue (`back`): return a function that moves the task to another model, or nil; write nothing
--   admit(task, ask)           submit: return a rejection, or nil; write nothing. `ask`: the arguments of submit
--   accept(task, ask)          submit, after every `admit`: write, and add fields to the record
--   enqueue(task, ask)         submit: return true if the feature has put the task into line itself
--   queued(task, by)           a task enters (by = 1) or leaves (-1) its line
--   opens(model, name, n)      return nil, or the instant (ms) from which the n-th task (default 1) of a model can start, and why: 'cooldown',
--                              'open' or 'probing' (upstreams.lua), or 'unsent': not before, and a report wakes a replica; write nothing
--   limit(model, name)         return the concurrency limit of a model without a configured one; nil: it has none; write nothing
--   starts(model, name)        a wake-up: start tasks that need no worker; return true if there may be more of them
--   serves(model, name, queue) return true if the feature runs tasks of the lane without a worker
--   expects(model, name, task, n, interval)  return a better interval and the least delay (ms) of the n-th task (placing.lua)
--   place(task)                return the place of a task that is in no line
--   may_start(task, grant)     submit, take, finish: return nil, or why a task cannot start (granting.lua); write nothing
--   granted(task, model)       an attempt begins
--   output(task)               append: the first output of an attempt
--   finishes(task, ask)        finish, before anything is written
--   failed(task, back)         requeue, before the task returns (retrying.lua)
--   attempted(task, code)      an attempt has an outcome: the code of a failure, or nil
--   redone(task, used)         the answer is requested again
--   falls(task)                return whether another model can run the task
--   released(task)             a slot is released: once per attempt
--   settled(task, used, ran)   an attempt is settled: once. `used`: nil if it is refunded; `ran`: it completed
--   expired(task, ends)        the lease of a running task is over: return true if the feature has ended the task
--   ended(task, finish, more)  a task has its terminal event: once; it may still hold a slot (`more`: see ending.lua)
--   closed(task)               a task has ended and holds no slot: once, before its usage is recorded; may increase `keep_ms`
--   deleted(task)              a client or operator deletes a task
--   inspected(model, name, seen)  inspect_model: add to what operators see of a model; write nothing
--   configured(now, name, before), unset(before, name, now)  settings of a model changed: called for each setting that it has now, or had
--   sweep_often(ask), sweep(ask)  each sweep, and once a second: bounded; return whether there is more to do
--   moved()                    sweep: return its field `moved`; the first function alone is called
local hooks = {}
local listed = {
  known = {}, answers = {}, route = {}, admit = {}, accept = {}, enqueue = {}, queued = {}, opens = {}, limit = {}, starts = {}, serves = {}, place = {}, expects = {}, may_start = {}, granted = {},
  output = {}, finishes = {}, failed = {}, attempted = {}, redone = {}, falls = {}, moved = {}, expired = {}, released = {}, settled = {}, ended = {}, closed = {}, deleted = {}, inspected = {}, configured = {}, unset = {}, sweep = {}, sweep_often = {},
}

-- If neither the task nor a model that the script has read has the field `extras`, only functions without a field can apply, and a hook that
-- has none of these is skipped.
--
-- Attach a function to a hook, for tasks (or models) with this field; nil: for all. `of_model`: for tasks whose model has the field.
-- (`pairs` and `table` do not exist while Redis loads a library.)
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
  task.extras, records.extras = true, true -- the feature may have to undo later what it does now, even if the model changes
  return true
end

-- Call a hook for a task. Return the first answer that is not nil.
function hooks.first(name, task, ...)
  local list = listed[name]
  if not (list.for_all or records.extras) then return nil end
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
  if not (list.for_all or records.extras) then return end
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

-- Call a hook without arguments. Return the answer of its first function.
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
