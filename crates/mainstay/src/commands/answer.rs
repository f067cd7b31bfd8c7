//! `answer`: an answer to a request of the agent.

use super::client;
use crate::cli::AnswerArgs;
use crate::client::{Client, encode};
use crate::config::Settings;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::follow::{allowing, rejecting};
use crate::output;
use serde_json::{Value, json};

pub(crate) async fn answer(
    settings: &Settings,
    environment: &Environment,
    args: AnswerArgs,
    json: bool,
) -> Result<Exit, Failure> {
    if environment.get(mainstay_api::KEEPER_TOKEN_VARIABLE).is_some() {
        return Err(Failure::new(
            Exit::Refused,
            "refused: this command runs inside an agent's process, and agents may not answer requests (from_agent)",
        ));
    }
    let client = client(settings);
    let path = format!("/v1/sessions/{}/requests", encode(&args.session));
    let request = find(&client, &path, &args.request).await?;
    let revision =
        args.revision.or_else(|| request.as_ref().and_then(|request| request["revision"].as_u64()));
    let mut body = choice(&args, request.as_ref())?;
    if let Some(revision) = revision {
        body["revision"] = revision.into();
    }
    if let Some(message) = args.message {
        body["message"] = message.into();
    }
    let taken = client.mutate("POST", &format!("{path}/{}/answer", encode(&args.request)), &body).await?;
    if json {
        output::json(&taken)?;
    } else {
        output::line("answered")?;
    }
    Ok(Exit::Completed)
}

/// The open request; None where it is not open any more, which the host then says better than we could.
async fn find(client: &Client, path: &str, request: &str) -> Result<Option<Value>, Failure> {
    let mut listed = client.get(path).await?;
    let requests = listed["requests"].as_array_mut().map(std::mem::take).unwrap_or_default();
    Ok(requests.into_iter().find(|open| open["id"] == request))
}

/// The answer that the flags name. A request that is not open any more gets an answer all the same: the host then says
/// what became of it.
fn choice(args: &AnswerArgs, request: Option<&Value>) -> Result<Value, Failure> {
    let read = |text: &str| {
        serde_json::from_str::<Value>(text)
            .map_err(|error| Failure::new(Exit::Usage, format!("that is not JSON: {error}")))
    };
    if let Some(answers) = &args.answers {
        return Ok(json!({ "answers": read(answers)? }));
    }
    if args.accept {
        let mut body = json!({ "accept": true });
        if let Some(content) = &args.content {
            body["content"] = read(content)?;
        }
        return Ok(body);
    }
    if let Some(option) = &args.option {
        return Ok(json!({ "option_id": resolve(request, option) }));
    }
    match (args.yes, args.no, args.cancel) {
        (true, _, _) => match (request, request.and_then(allowing)) {
            (_, Some(option)) => Ok(json!({ "option_id": option })),
            (None, None) => Ok(json!({ "option_id": "yes" })),
            (Some(_), None) => {
                Err(Failure::new(Exit::Refused, "this request has no option that allows; name one"))
            }
        },
        (_, true, _) => Ok(match request.and_then(rejecting) {
            Some(option) => json!({ "option_id": option }),
            None => json!({ "decline": true }),
        }),
        (_, _, true) => Ok(json!({ "cancel": true })),
        _ => Ok(json!({ "decline": true })),
    }
}

/// An option by its id, or by its place in the list.
fn resolve(request: Option<&Value>, option: &str) -> String {
    let options =
        request.and_then(|request| request["options"].as_array()).map_or(&[] as &[Value], Vec::as_slice);
    let id = |value: &Value| value["option_id"].as_str().map(str::to_owned);
    if options.iter().any(|value| value["option_id"] == option) {
        return option.to_owned();
    }
    let by_place =
        option.parse::<usize>().ok().and_then(|place| options.get(place.checked_sub(1)?)).and_then(id);
    by_place.unwrap_or_else(|| option.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_counts_before_a_place() {
        let request = json!({ "options": [{ "option_id": "2" }, { "option_id": "allow" }] });
        assert_eq!(resolve(Some(&request), "allow"), "allow");
        assert_eq!(resolve(Some(&request), "1"), "2");
        assert_eq!(resolve(Some(&request), "2"), "2");
        assert_eq!(resolve(Some(&request), "9"), "9");
        assert_eq!(resolve(None, "1"), "1");
    }
}
