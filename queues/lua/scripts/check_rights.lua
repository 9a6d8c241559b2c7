-- check_rights: list the commands that the user of this connection cannot run on keys and channels of the pool
-- args      commands; a subcommand follows behind a space
-- returns   {forbidden}: those that its ACL forbids, in their order
local COUNTS = { 3, 2, 1, 0, 4, 5, 6 }

-- Return whether the user may run a command with this number of arguments; nil: the server rejects this number.
local function allows(command, count)
  local words = {}
  for word in string.gmatch(command, '%S+') do words[#words + 1] = word end
  for _ = 1, count do words[#words + 1] = keys.probe() end -- as key, or as channel
  local said, allowed = pcall(redis.acl_check_cmd, unpack(words))
  if said then return allowed end
end

script('check_rights', 'no-writes', function(ask)
  local forbidden = {}
  for _, command in ipairs(ask.commands) do
    local allowed
    for _, count in ipairs(COUNTS) do
      allowed = allows(command, count)
      if allowed ~= nil then break end
    end
    if not allowed then forbidden[#forbidden + 1] = command end
  end
  return { forbidden = forbidden }
end)
