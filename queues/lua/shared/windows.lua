-- Windows of a model (field `windows`, `50/1s, 1000/1m`): its target sees at most this number of requests within any such time, wherever one
-- begins to count, over all replicas and workers.
--
-- An attempt counts from its grant until its request is known to have left, or its end is, and a window longer. As long as neither
-- is known it counts on. So no window is ever passed: say that more requests than a window holds came within it, and look at the attempt
-- among them that was granted last. Each of the others was granted before, and its request came within that window, so it was
-- known to have left no earlier, and a window after that was not over when the last one came, nor when that was granted: all of them
-- counted then, and it was not granted.
--
-- One set of each model: attempt -> the instant (us) at which its request was known to have left; FOREVER: it is not known.
-- What is out of the longest window is dropped by grants; the set itself a day after the last one.
local windows = {}
do
local UNITS = { ms = 1000, s = 1000000, m = 60000000, h = 3600000000 }
local DAY = 86400000

-- What a text says: a list of {requests, us}, and the longest, us.
local parse = memoize(function(text)
  local list = { longest = 0 }
  for requests, number, unit in string.gmatch(text, '(%d+)%s*/%s*(%d+)%s*(%a+)') do
    local us = tonumber(number) * UNITS[unit]
    list[#list + 1] = { tonumber(requests), us }
    list.longest = math.max(list.longest, us)
  end
  return list
end)

local function member(id, epoch) return id .. ':' .. epoch end

-- The earliest instant (us) at which the n-th task from now may start; 0: now. And whether that depends on one whose departure is not
-- known yet: then it is no earlier.
function windows.free_at(model, text, n)
  local key, at, open = keys.windows(model), 0, false
  for _, window in ipairs(parse(text)) do
    local most, us = window[1], window[2]
    local rounds = math.floor((n - 1) / most) -- those before them fill the window so often
    local place = whole(most - (n - rounds * most)) -- from the end: of this one the window must be over
    local left = tonumber(call('ZREVRANGE', key, place, place, 'WITHSCORES')[2])
    if left and left >= FOREVER then
      open, left = true, US
    end
    if left and left + us > US then
      at = math.max(at, left + us + rounds * us)
    elseif rounds > 0 then
      at = math.max(at, US + rounds * us)
    end
  end
  return at, open
end

-- An attempt is granted.
function windows.begin(model, text, id, epoch)
  local key, longest = keys.windows(model), parse(text).longest
  call('ZREMRANGEBYSCORE', key, '-inf', whole(US - longest))
  call('ZADD', key, whole(FOREVER), member(id, epoch))
  call('PEXPIRE', key, whole(longest / 1000 + DAY))
end

-- The request of an attempt has left by now, or will arrive in `later` us, unless its end is known before; `over`: the
-- attempt has ended, which says nothing new where that was known. Nothing, if the attempt does not count.
function windows.note(model, id, epoch, over, later)
  if over then
    call('ZADD', keys.windows(model), 'XX', 'LT', US_TEXT, member(id, epoch))
  else
    call('ZADD', keys.windows(model), 'XX', whole(US + (later or 0)), member(id, epoch))
  end
end

-- An attempt is over, and its request never left.
function windows.forget(model, id, epoch) call('ZREM', keys.windows(model), member(id, epoch)) end

-- Whether it is not known yet that the request of an attempt has left.
function windows.waits_for(model, id, epoch)
  return tonumber(call('ZSCORE', keys.windows(model), member(id, epoch)) or 0) >= FOREVER
end

-- A model has windows now that had none: what runs counts until it ends, or from its first output; or it has none any more.
function windows.set(model, before, text)
  if not text then
    call('DEL', keys.windows(model))
  elseif not before then
    for _, id in ipairs(call('ZRANGE', keys.slots(model), '0', '-1')) do
      local epoch, first_output = unpack(call('HMGET', keys.task(id), 'epoch', 'first_output_at'))
      if epoch then windows.begin(model, text, id, epoch) end
      if first_output then
        call('ZADD', keys.windows(model), whole(math.min(num(first_output) * 1000 + 1000, US)), member(id, epoch))
      end
    end
  end
end
end
