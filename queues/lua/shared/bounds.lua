-- How far from the wait that was told its bounds have to be, for nine waits of ten to lie between them: counted in spreads (see
-- placing), each side by itself, and learnt for each lane from the waits that come (field W:queue). A wait beyond its bound widens
-- that by LEARN * (1 - MISSES), one within narrows it by LEARN * MISSES, in the logarithm: so MISSES of them are beyond, whatever
-- their distribution and however it changes (Gibbs, Candes: Adaptive Conformal Inference Under Distribution Shift, 2021). What
-- counts is the bound that holds when a wait is known, not the one that was told: or a burst that was told too little would
-- widen it again with each of its tasks.
local read_bounds, note_told, bounds_after
do
local LEARN, MISSES = 0.3, 0.035
local FIRST_BOUND, LEAST_BOUND, MOST_BOUND = 2, 1.4, 8

-- The bounds below and above, in spreads.
function read_bounds(stored)
  if not stored then return FIRST_BOUND, FIRST_BOUND end
  return struct.unpack('<dd', stored)
end

-- What the record of a task keeps, until its grant, of the wait that is told.
function note_told(wait, spread) return whole(math.max(wait, 0)) .. ' ' .. whole(spread) end

-- The bounds after one more wait: a task that was told `told` has `waited` so many ms.
function bounds_after(stored, told, waited)
  local below, above = read_bounds(stored)
  local wait, spread = string.match(told, '(%d+) (%d+)')
  local off = (waited - wait) / math.max(num(spread), 1)
  local function moved(bound, beyond)
    local moved_to = bound * math.exp(LEARN * ((beyond > bound and 1 or 0) - MISSES))
    return math.max(math.min(moved_to, MOST_BOUND), LEAST_BOUND)
  end
  return struct.pack('<dd', moved(below, 0 - off), moved(above, off))
end
end
