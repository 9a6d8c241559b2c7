-- May something start now? The one answer: which lane of a model starts a task next, or when one may.
--   1  a model that is paused or has no free slot starts nothing; nor does one that a feature holds back (hook `opens`);
--   2  a lane may not start more while its queue is paused or runs `max_running` tasks over all models;
--   3  a lane that has not all of its reserved slots comes before those that have; else the one with the smallest tag.
local eligible = {}

-- Return whether a queue may start a task.
local function queue_open(queue)
  local settings = models.queue(queue)
  if settings.paused then return false end
  return not settings.max_running or call('SCARD', keys.load(queue)) < settings.max_running
end

-- Return the queue whose lane starts next, the tag of the first lane that may start, and the lanes that were passed over. `comer`: a queue
-- that gets a task, whether others wait in it or not.
local function choose(model, comer)
  local chosen, chosen_lane, chosen_owed, first
  local skipped = {}
  for queue, lane in pairs(comer and model.open or models.lanes(model)) do
    if lane.users > 0 or queue == comer then
      if queue_open(queue) then
        first = first and math.min(first, lane.tag) or lane.tag
        local reserved = models.queue(queue).reserved
        local owed = reserved ~= nil and model.concurrency ~= nil and lane.running < reserved
        local before = not chosen or (owed and not chosen_owed)
        if not before and owed == chosen_owed then
          before = lane.tag < chosen_lane.tag or (lane.tag == chosen_lane.tag and queue < chosen)
        end
        if before then chosen, chosen_lane, chosen_owed = queue, lane, owed end
      else
        skipped[#skipped + 1] = lane
      end
    end
  end
  return chosen, first, skipped
end

-- Return how many slots of a model are free.
function eligible.free_slots(name, model)
  local limit = model.concurrency
  return limit and limit > 0 and limit - call('ZCARD', keys.slots(name)) or FOREVER
end

-- Return the instant (ms) from which a model may start tasks, whatever ends before; nil: now; FOREVER: when an operator resumes it.
function eligible.opens_at(name, model)
  if model.paused then return FOREVER end
  return hooks.first('opens', model, name)
end

-- Return the turn of a model that starts a task next: its `queue` and `lane`, where the virtual time `moves_to`, whether the task gets the
-- `last` slot, and the lanes `skipped`. nil: none may; then the instant (ms) from which one may, if time alone is in the way. Changes
-- nothing. `comer`: as in `choose`; then only if no task waits.
function eligible.turn(name, comer)
  local model = models.get(name)
  if is_reserved(name) and not model.fixed then return nil end -- its limits are not known (any more)
  if comer then
    if model.users > 0 then return nil end
    models.lane(model, comer)
  end
  if not comer and model.users == 0 then return nil end
  local free = eligible.free_slots(name, model)
  if free <= 0 then return nil end
  local at, why = eligible.opens_at(name, model)
  if at then return nil, why ~= 'unsent' and at or FOREVER end
  local queue, first, skipped = choose(model, comer)
  if not queue then return nil end
  return { queue = queue, lane = model.open[queue], moves_to = first, last = free == 1, skipped = skipped }
end

return eligible
