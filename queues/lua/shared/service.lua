local period, note_served, note_left, service_of
do
-- How much users were served while they stood in line: what a fairness index is computed from.
--
-- A hash per lane and period of five minutes: user -> cost charged to it while tasks of it waited, by its weight, in hundredths,
-- times 65,536, plus the number of grants after which more of its tasks waited. One who leaves the line is marked in the period
-- in which it does. So who has an unmarked entry in one period, and in the next one an unmarked entry or none, stood in line
-- through all of that next one. A lane whose users have one task each, as when nobody has to wait for long, has no such hash.
local MOST_SERVED = 1000
local LEFT = '-4611686018427387904' -- stays negative, whatever is added
local MOST_COUNTED = 268435456 -- of one charge, in hundredths: half a million of them still add up in 63 bits

function period() return math.floor(NOW / 300000) end

-- `grants`: 1 when the charge is for a grant, 0 when it is for what a running task uses beyond that.
function note_served(q, m, u, cost, grants)
  local served = keys.service(q, whole(period()), m)
  local amount = math.floor(math.min(cost * 100, MOST_COUNTED) + 0.5) * 65536 + grants
  if call('HINCRBY', served, u, whole(amount)) == amount then
    if call('HLEN', served) > MOST_SERVED then
      call('HDEL', served, u)
    else
      call('PEXPIRE', served, '900000')
    end
  end
end

function note_left(q, m, u)
  local served, before = keys.service(q, whole(period()), m), keys.service(q, whole(period() - 1), m)
  if call('EXISTS', served, before) == 0 then return end
  if call('HEXISTS', served, u) == 1 or call('HEXISTS', before, u) == 1 then
    call('HSET', served, u, LEFT)
    call('PEXPIRE', served, '900000')
  end
end

-- What each user was served who stood in line through the whole last period, as above. (Less than nothing: what was paid ahead
-- in the period before came back.)
local GONE = LEFT / 2
function service_of(q, m)
  local amounts = {}
  local at_its_end = call('HGETALL', keys.service(q, whole(period() - 2), m))
  for i = 1, #at_its_end, 2 do
    if tonumber(at_its_end[i + 1]) > GONE then
      local amount = tonumber(call('HGET', keys.service(q, whole(period() - 1), m), at_its_end[i]) or '0')
      if amount > GONE then amounts[#amounts + 1] = whole(math.max(amount, 0)) end
    end
  end
  return amounts
end
end
