//! A command that an agent runs tries to answer that agent's own approval.

use crate::support::{Follower, World, is, mainstay};

#[test]
fn an_agents_own_command_cannot_answer_its_approval() {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    // The session whose approval is to be answered, and a second one whose agent runs commands.
    let session = world.create(&host, "scripted", "ASK may I");
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    let request = opened["request"].as_str().unwrap().to_owned();
    let home = world.home.mainstay_home().display().to_string();
    let runtime = world.home.runtime_dir().display().to_string();
    let path = format!("/v1/sessions/{session}/requests/{request}/answer");
    let by_socket = format!(
        "curl -s --unix-socket {} -H 'Content-Type: application/json' -d '{{\"option_id\":\"allow_once\"}}' http://localhost{path}",
        host.socket.display()
    );
    let by_token = format!(
        "curl -s -H \"Authorization: Bearer $(cat {home}/token)\" -H 'Content-Type: application/json' -d '{{\"option_id\":\"allow_once\"}}' http://{}{path}",
        host.listening
    );
    let by_cli = format!(
        "MAINSTAY_HOME={home} XDG_RUNTIME_DIR={runtime} {} answer {session} {request} --yes 2>&1",
        mainstay().display()
    );
    let by_cli_without_mark = format!("env -u MAINSTAY_KEEPER_TOKEN {by_cli}");
    for command in [by_socket, by_token, by_cli, by_cli_without_mark] {
        let attacker = world.create(&host, "scripted", &format!("RUN {command}"));
        let said = crate::support::follow_turn(&client, &attacker);
        let output = said.events.iter().map(ToString::to_string).collect::<String>();
        assert!(output.contains("from_agent") || output.contains("refused"), "{command}\n{output}");
        let open = client.get(&format!("/v1/sessions/{session}/requests")).unwrap().json();
        assert!(open.to_string().contains(&request), "the approval was answered by {command}");
    }
    crate::support::answer(&client, &session, &request, "allow_once").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(follower.agent_text().contains("allowed:allow_once"));
    world.end(host);
}
