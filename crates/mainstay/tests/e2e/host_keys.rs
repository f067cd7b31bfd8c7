//! Keys of the host's configuration, set beside what [`World::configure`] wrote.

use crate::support::World;

/// Sets `key = value` (as TOML) for hosts that start from now on.
pub(crate) fn set(world: &World, key: &str, value: &str) {
    let path = world.home.mainstay_home().join("config.toml");
    let before = std::fs::read_to_string(path).expect("a configuration");
    let others = before.lines().filter(|line| !line.starts_with(&format!("{key} =")));
    // Keys of the host stand before the first table.
    let text: Vec<String> =
        std::iter::once(format!("{key} = {value}")).chain(others.map(str::to_owned)).collect();
    world.home.write_config(&(text.join("\n") + "\n"));
}

/// Sets `key = value` (as TOML) of an agent that [`World::configure`] registered.
pub(crate) fn set_for_agent(world: &World, agent: &str, key: &str, value: &str) {
    let path = world.home.mainstay_home().join("config.toml");
    let before = std::fs::read_to_string(path).expect("a configuration");
    let table = format!("[agents.{agent}]\n");
    assert!(before.contains(&table), "no agent {agent} in {before}");
    world.home.write_config(&before.replace(&table, &format!("{table}{key} = {value}\n")));
}

/// Adds a variable to the environment of an agent that [`World::configure`] registered.
pub(crate) fn set_agent_env(world: &World, agent: &str, name: &str, value: &str) {
    let path = world.home.mainstay_home().join("config.toml");
    let before = std::fs::read_to_string(path).expect("a configuration");
    let table = format!("[agents.{agent}]\n");
    let (head, tail) = before.split_once(&table).expect("the agent is registered");
    let tail = tail.replacen("env = { ", &format!("env = {{ {name} = \"{value}\", "), 1);
    world.home.write_config(&format!("{head}{table}{tail}"));
}
