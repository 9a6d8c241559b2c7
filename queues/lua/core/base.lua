-- The time, messages, and how a script is registered.
--
-- All files are one library of Redis functions: what they define is made once, when it is loaded. This file is its first; every other
-- one is a module: it returns a table, or registers scripts. A script gets named arguments (a msgpack map) and byte strings (behind it in
-- `args`), and returns a map and byte strings. What it changes of records and models lies in tables (records.lua, models.lua), which are read
-- once and written once, when it has ended.
local call
local US -- microseconds
local US_TEXT
local NOW -- milliseconds
local NOW_TEXT
local FOREVER = 9007199254740991
local unit_of_work = {} -- modules with `begin` and `flush`, called around each script

-- Register a script. `flag`: 'allow-oom' where it frees more than it takes, or keeps alive what runs: a full Redis runs it, and refuses
-- others as a whole; 'no-writes' where it only reads; nil.
local function script(name, flag, body)
  redis.register_function({
    function_name = LIBRARY .. '_' .. name,
    flags = { flag },
    callback = function(prefixes, args)
      call, P = redis.call, prefixes[1]
      US = clock_us()
      US_TEXT = string.format('%d', US)
      NOW, NOW_TEXT = math.floor(US / 1000), string.sub(US_TEXT, 1, -4)
      for i = 1, #unit_of_work do unit_of_work[i].begin() end
      local reply = { body(cmsgpack.unpack(args[1]), args) }
      if flag ~= 'no-writes' then
        for i = 1, #unit_of_work do unit_of_work[i].flush() end
      end
      reply[1] = cmsgpack.pack(reply[1])
      return reply
    end,
  })
end

-- A number as text, without its fraction. (Redis takes twice as long to convert a number that it is given.)
local function whole(number) return string.format('%d', number) end

-- A stored number; 0 when there is none. (An addition converts text in half the time of `tonumber`.)
local function num(text) return text and text ~= '' and text + 0 or 0 end

-- Return whether an instant (ms) has come. An absent one never comes.
local function passed(instant) return instant ~= nil and instant ~= false and instant > 0 and instant <= NOW end

-- Return the earlier of two instants; an absent one never comes.
local function earlier(at, instant) return instant and instant > 0 and instant < at and instant or at end

-- Publish to a replica. Return the number of receivers.
local function publish(replica, message) return call('PUBLISH', keys.channel(replica), message) end

-- Return the data of an event that is made here; `rest` is its fields without braces.
local function event_data(id, rest) return '{"taskId":"' .. id .. '","ts":' .. NOW_TEXT .. ',' .. rest .. '}' end

-- Return `parse`, with its results kept by their text: the same for many tasks.
local function memoize(parse)
  local found, number = {}, 0
  return function(text)
    local value = found[text]
    if not value then
      value = parse(text)
      if number == 1000 then found, number = {}, 0 end
      found[text], number = value, number + 1
    end
    return value
  end
end

-- Whether a model is an endpoint's: workers of every model do not run it.
local function is_reserved(model) return string.sub(model, 1, 5) == 'http:' end

-- The names by which workers offer a model: its own, and that of every model; an endpoint's only its own.
local function offered_as(model)
  if model == '*' then return { '*' } end
  return is_reserved(model) and { model } or { model, '*' }
end
