-- Decides which lane of a model starts a task next, or from when one can. No other file decides this.
--   1  A model that is paused or has no free slot starts nothing, and neither does one that a feature holds back (hook `opens`).
--   2  A lane starts nothing while its queue is paused or runs `max_running` tasks over all models.
--   3  Lanes with fewer running tasks than reserved slots come first. Among equals, the smallest tag wins.
local eligible = {}

-- Return whether a queue may start a task.
local function queue_open(queue)
  local settings = models.queue(queue)
  if settings.paused then return false end
  return not settings.max_running or call('SCARD', keys.load(queue)) < settings.max_running
end

-- Return the queue whose lane starts next, the smallest tag of the lanes that can start, and the lanes that were passed over. `comer`: a
-- queue that is about to get a task and counts even if no task waits in it. `limited`: the model has a limit, so that reserved slots count.
local function choose(model, comer, limited)
  local chosen, chosen_lane, chosen_owed, first
  local skipped = {}
  for queue, lane in pairs(comer and model.open or models.lanes(model)) do
    if lane.users > 0 or queue == comer then
      if queue_open(queue) then
        first = first and math.min(first, lane.tag) or lane.tag
        local reserved = models.queue(queue).reserved
        local owed = reserved ~= nil and limited and lane.running < reserved
        local before = not chosen or (owed and not chosen_owed)
        if not before and owed == chosen_owed then
          before = lane.tag < chosen_lane.tag or (lane.tag == chosen_lane.tag and queue < chosen)
        end
        if before then chosen, chosen_lane, chosen_owed = queue, lane, owed end
      else
        skipped[#skipped + 1] = queue
      end
    end
  end
  return chosen, first, skipped
end

-- Return how many slots of a model are free, and whether it has a limit.
function eligible.free_slots(name, model)
  local limit = model.concurrency or model.extras and hooks.first('limit', model, name)
  if not limit then return FOREVER, false end
  return limit - slots.taken(name), true
end

-- Return the instant (ms) from which a model can start tasks, if no running task ends; nil: now; FOREVER: when an operator resumes it.
function eligible.opens_at(name, model)
  if model.paused then return FOREVER end
  return hooks.first('opens', model, name)
end

-- Return the next turn of a model: its `queue` and `lane`, the virtual time that the model `moves_to`, whether the task gets the `last` slot,
-- and the lanes that were `skipped`. If no task can start, return nil and, if only time is missing, the instant (ms) from which one can.
-- Changes nothing. `comer`: as in `choose`; nil if any task waits.
function eligible.turn(name, comer)
  local model = models.get(name)
  if is_reserved(name) and not model.fixed then return nil end -- no configuration has its limits (any more)
  if comer then
    if model.users > 0 then return nil end
    models.lane(model, comer)
  end
  if not comer and model.users == 0 then return nil end
  local free, limited = eligible.free_slots(name, model)
  if free <= 0 then return nil end
  local at, why = eligible.opens_at(name, model)
  if at then return nil, why ~= 'unsent' and at or FOREVER end
  local queue, first, skipped = choose(model, comer, limited)
  if not queue then return nil end
  return { queue = queue, lane = models.lane(model, queue), moves_to = first, last = free == 1, skipped = skipped }
end

return eligible
