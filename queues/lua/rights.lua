-- rights: which commands the user of this connection may not run on what belongs to the pool
-- KEYS[1]  prefix of the pool
-- ARGV     commands; a subcommand follows behind a space
-- returns  those that its ACL forbids, in their order
script('rights', 'no-writes', function(ARGV)
  local forbidden, name = {}, keys.probe()
  for _, command in ipairs(ARGV) do
    local words = {}
    for word in command:gmatch('%S+') do words[#words + 1] = word end
    for _ = 1, 3 do words[#words + 1] = name end -- as key, or as channel
    if not redis.acl_check_cmd(unpack(words)) then forbidden[#forbidden + 1] = command end
  end
  return forbidden
end)
