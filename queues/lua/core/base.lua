-- The time, messages, and how a script is registered.
--
-- All files are one library of Redis functions; what they define is created once, when the library is loaded. This file is the first. Each
-- other file is a module: it returns a table, or registers scripts. A script gets named arguments (a msgpack map) and byte strings (`args`
-- from 2 on), and returns a map and byte strings. Records and models are tables (records.lua, models.lua): a script reads each one once, and
-- writes the changed ones when it ends.

-- Lua's own functions as locals, because Redis finds a global only in the second table that it asks. The first script sets them, since they do
-- not exist while a library is loaded.
local function globals() return math, string, table, pairs, ipairs, next, unpack, setmetatable, cmsgpack, struct end
local math, string, table, pairs, ipairs, next, unpack, setmetatable, cmsgpack, struct

local call
local US -- microseconds
local US_TEXT
local NOW -- milliseconds
local NOW_TEXT
local FOREVER = 9007199254740991
local tables_of_script = {}
local unit_of_work = {} -- modules with functions that are called before each script (`begin`), after it (`flush`; it may add to what modules
-- before it write), and between calls that share a script (`next_call(ok)`). A module needs only some of them

-- Return a table that is emptied before each script.
local function table_of_script()
  local entries = {}
  tables_of_script[#tables_of_script + 1] = entries
  return entries
end

local function run_one(body, args)
  local reply = { body(cmsgpack.unpack(args[1]), args) }
  reply[1] = cmsgpack.pack(reply[1])
  return reply
end

-- Run the calls of a script one after the other: of each, the number of its strings, and these. They read shared state once. Return a reply
-- of each. If one fails, the others continue. Each is a microsecond later than the one before, so that tasks keep their order.
local function run_each(body, args)
  local replies, at = {}, 1
  while args[at] do
    local last = at + args[at]
    local own, alone = { unpack(args, at + 1, last) }, at == 1 and not args[last + 1]
    if alone then return { run_one(body, own) } end
    local ok, reply = pcall(run_one, body, own)
    for i = 1, #unit_of_work do
      if unit_of_work[i].next_call then unit_of_work[i].next_call(ok) end
    end
    replies[#replies + 1] = ok and reply or { err = type(reply) == 'table' and reply.err or tostring(reply) }
    at, US = last + 1, US + 1
  end
  return replies
end

-- Return a number as text, without its fraction. (If Redis has to convert an argument that is a number, that takes twice as long.) Small
-- numbers are cached, and the last one, because several commands in a row get the same instant or epoch.
local small, last_number, last_text = {}, nil, nil
local function whole(number)
  local text = small[number]
  if text then return text end
  if number == last_number then return last_text end
  text = string.format('%d', number)
  if number >= 0 and number < 1000 then small[math.floor(number)] = text else last_number, last_text = number, text end
  return text
end

-- Register a script. `flag`: 'no-writes' if it only reads; 'allow-oom' if it frees more memory than it takes, or keeps running tasks alive:
-- a full Redis still runs it, and rejects the others as a whole; or nil. `many`: the script runs several calls (RedisLink.run_with_others).
local function script(name, flag, body, many)
  redis.register_function({
    function_name = LIBRARY .. '_' .. name,
    flags = { flag },
    callback = function(prefixes, args)
      if not call then math, string, table, pairs, ipairs, next, unpack, setmetatable, cmsgpack, struct = globals() end
      call, P = redis.call, prefixes[1]
      US = clock_us()
      US_TEXT = whole(US)
      NOW, NOW_TEXT = math.floor(US / 1000), string.sub(US_TEXT, 1, -4)
      for i = 1, #tables_of_script do
        local entries = tables_of_script[i]
        for key in pairs(entries) do entries[key] = nil end
      end
      for i = 1, #unit_of_work do
        if unit_of_work[i].begin then unit_of_work[i].begin() end
      end
      local reply = many and run_each(body, args) or run_one(body, args)
      if flag ~= 'no-writes' then
        for i = #unit_of_work, 1, -1 do
          if unit_of_work[i].flush then unit_of_work[i].flush() end
        end
      end
      return reply
    end,
  })
end

-- Return a stored number; 0 if there is none. (An addition converts text in half the time of `tonumber`.)
local function num(text) return text and text ~= '' and text + 0 or 0 end

-- Return whether an instant (ms) is over; false if it is absent.
local function passed(instant) return instant ~= nil and instant ~= false and instant > 0 and instant <= NOW end

-- Return the earlier of two instants; `instant` may be absent.
local function earlier(at, instant) return instant and instant > 0 and instant < at and instant or at end

-- Publish to a replica. Return the number of receivers.
local function publish(replica, message) return call('SPUBLISH', keys.channel(replica), message) end

-- Return the data of an event that a script creates. `rest`: its fields, without braces.
local function event_data(id, rest) return '{"taskId":"' .. id .. '","ts":' .. NOW_TEXT .. ',' .. rest .. '}' end

-- Return `parse` with a cache of its results by text, since many tasks have the same text.
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

-- Return a cache of tables by key, with the packed text of each: a script need not unpack what another has written. `take` returns the table that
-- was put with this text, if that is what is stored now, and removes it, because the script may change it and then fail.
local function packed_tables()
  local cache, texts, tables, number = {}, {}, {}, 0
  function cache.put(key, text, value)
    if number == 1000 then texts, tables, number = {}, {}, 0 end
    texts[key], tables[key], number = text, value, number + 1
  end
  function cache.take(key, text)
    local before, value = texts[key], tables[key]
    if not before then return nil end
    texts[key], tables[key], number = nil, nil, number - 1
    return before == text and value or nil
  end
  return cache
end

-- Return whether a model is an endpoint: workers that serve every model (`*`) do not run it.
local function is_reserved(model) return string.sub(model, 1, 5) == 'http:' end

-- Return the names under which workers can offer a model: its own, and `*` unless it is an endpoint.
local function offered_as(model)
  if model == '*' then return { '*' } end
  return is_reserved(model) and { model } or { model, '*' }
end
