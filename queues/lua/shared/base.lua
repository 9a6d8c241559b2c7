-- What every script begins with: the pool's prefix, the time, records.
local call = redis.call
local tonumber, tostring, max, min, floor = tonumber, tostring, math.max, math.min, math.floor

local US = clock_us() -- microseconds
local NOW = floor(US / 1000) -- milliseconds
local FOREVER = 9007199254740991

-- A record as a table of strings; nil when there is none.
local function load(id)
  local flat = call('HGETALL', key_task(id))
  if #flat == 0 then return nil end
  local t = {}
  for i = 1, #flat, 2 do t[flat[i]] = flat[i + 1] end
  return t
end

local function num(text) return tonumber(text or 0) or 0 end

-- Redis would write a large number as 1.7e+12.
local function int(n) return string.format('%.0f', n) end

-- The instant at which the sweep must look at a task that waits (0 = never set).
local function wait_instant(t)
  local at = FOREVER
  for _, field in ipairs({ 'wd', 'dl', 'lv' }) do
    local v = num(t[field])
    if v > 0 then at = min(at, v) end
  end
  return at
end

-- The same for a task that runs, whose lease ends at `lease_end`.
local function run_instant(t, lease_end)
  local at = lease_end
  for _, field in ipairs({ 'xd', 'lv' }) do
    local v = num(t[field])
    if v > 0 then at = min(at, v) end
  end
  return at
end

-- Publish to a replica; the number of receivers.
local function tell(replica, message) return call('PUBLISH', P .. 'c:' .. replica, message) end

-- Tell the readers' replicas of an event, all but `except`. Large events travel by id only.
local function publish_event(readers, id, event_id, kind, data, except)
  if not readers or readers == '' then return end
  local message
  for replica in string.gmatch(readers, '[^,]+') do
    if replica ~= except then
      if not message then
        if #data > 65536 then
          message = 'i\n' .. id .. '\n' .. event_id
        else
          message = 'e\n' .. id .. '\n' .. event_id .. '\n' .. kind .. '\n' .. data
        end
      end
      tell(replica, message)
    end
  end
end

-- The data of an event made here: `rest` is its fields without braces.
local function event_data(id, rest) return '{"taskId":"' .. id .. '","ts":' .. int(NOW) .. ',' .. rest .. '}' end
