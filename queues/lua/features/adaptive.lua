-- Adaptive concurrency: a model with the setting `auto_target_ms` has no fixed limit. The limit follows the time to the first output of its
-- attempts, from the grant, over all replicas; an attempt without a stream counts when it ends. A late attempt counts as soon as the
-- sweep sees it, since its output can take much longer. The limit grows by addition and shrinks by multiplication, so it stays near the
-- number of tasks from which the server is late:
--   up    by 1, if a task that was granted at the limit, after the last change, had its first output in time. At most once per target
--         time, because a late output is known only after that time. Until the first decrease, the limit doubles instead, without this pause.
--   down  to 3/4, if more than a quarter of the last outputs were late. Only tasks that were granted after the last decrease count, so at
--         least one target time is between two decreases. One late output is no reason: the prompt may be long.
-- Settings: auto_target_ms, auto_min, auto_max. While an operator sets `concurrency`, that number is the limit, and nothing is learned.
-- State, in the model's `auto`: limit; late: how many of the last outputs were late, 0 to 1; raised_at and reduced_at (ms); decreases.
local adaptive = {}
local LATE_SHARE = 1 / 4
local WEIGHT = 1 / 8 -- of the newest output in `late`: three late ones in a row are more than LATE_SHARE
local KEPT = 3 / 4 -- of the limit, at a decrease
local MAX_CHECKED = 256 -- attempts of a model, in one sweep

local function new_state(model) return { limit = model.auto_min, late = 0, raised_at = 0, reduced_at = 0, decreases = 0 } end

-- Return the current limit of a model, within its bounds, which may have changed.
local function limit_of(model)
  local limit = model.auto and model.auto.limit or model.auto_min
  return math.max(math.min(limit, model.auto_max), model.auto_min)
end

-- Count the first output of an attempt that took `took` ms. Return whether the limit has grown.
local function observe(task, model, took)
  local state = model.auto or new_state(model)
  local limit, at_limit = limit_of(model), task.granted_in == 'last_slot'
  local late = took > model.auto_target_ms
  model.auto = state
  models.save(task.model)
  if task.granted_at < state.reduced_at then return false end
  state.late = state.late + ((late and 1 or 0) - state.late) * WEIGHT
  if state.late > LATE_SHARE then
    state.limit = math.max(math.floor(limit * KEPT), model.auto_min)
    if state.limit < limit then state.decreases = state.decreases + 1 end
    state.late, state.reduced_at, state.raised_at = 0, NOW, NOW
    return false
  end
  if late or not at_limit or limit >= model.auto_max or task.granted_at < state.raised_at then return false end
  if state.decreases > 0 and NOW < state.raised_at + model.auto_target_ms then return false end
  state.limit, state.raised_at = math.min(state.decreases > 0 and limit + 1 or limit * 2, model.auto_max), NOW
  return true
end

hooks.attach('limit', 'auto_target_ms', limit_of)

-- (The slot of this task is not counted yet.)
hooks.attach('granted', 'auto_target_ms', function(task, model)
  if model.concurrency then return end
  task.granted_in = slots.taken(task.model) + 1 >= limit_of(model) and 'last_slot' or 'free_slots'
end, true)

local function observed(task, took)
  local model = models.get(task.model)
  local learns = model.auto_target_ms and not model.concurrency
  local grown = learns and observe(task, model, took)
  task.granted_in = nil
  return grown
end

hooks.attach('output', 'granted_in', function(task)
  if observed(task, NOW - task.granted_at) then waking.wake(task.model) end
end)

-- An attempt without output that failed early says nothing about the server's load; one that lasted longer than the target does.
-- (The caller fills the slots that a larger limit opens.)
hooks.attach('settled', 'granted_in', function(task, used, ran)
  local took = (task.ended_at or NOW) - task.granted_at
  if ran or (used and took > (models.get(task.model).auto_target_ms or FOREVER)) then observed(task, took) end
  task.granted_in = nil
end)

hooks.attach('sweep', nil, function()
  for _, name in ipairs(call('ZRANGE', keys.backlog(), '0', '999')) do
    local target = models.get(name).auto_target_ms
    for _, id in ipairs(target and call('ZRANGE', keys.slots(name), '0', whole(MAX_CHECKED - 1)) or {}) do
      local task = records.load(id)
      if task and task.granted_in and NOW - task.granted_at > target then
        observed(task, NOW - task.granted_at)
        records.save(task)
      end
    end
  end
end)

hooks.attach('inspected', 'auto_target_ms', function(model, _, seen)
  if model.concurrency then return end
  seen.adaptive = { limit = limit_of(model), min = model.auto_min, max = model.auto_max,
    target_ms = model.auto_target_ms, decreases = model.auto and model.auto.decreases or 0 }
end)

return adaptive
