//! Reads that concern the process and no thread: models, account, limits, skills, MCP servers.

use super::CodexAdapter;
use super::state::Asked;
use crate::adapter::Translated;
use crate::catalogue::{Catalogue, Model};
use crate::rpc::RpcError;
use mainstay_core::SessionOptions;
use mainstay_core::content::{Failure, FailureCode};
use serde_json::{Value, json};

/// What the server calls it where no tier is chosen.
const UNSET_TIER: &str = "default";

/// One of the reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum CatalogueRead {
    Models,
    Account,
    Limits,
    Skills,
    McpServers,
}

/// Everything.
pub(super) const ALL: [CatalogueRead; 5] = [
    CatalogueRead::Models,
    CatalogueRead::Account,
    CatalogueRead::Limits,
    CatalogueRead::Skills,
    CatalogueRead::McpServers,
];

/// What the server has in memory. The others start MCP servers, look through folders, or ask the provider.
pub(super) const IN_MEMORY: [CatalogueRead; 2] = [CatalogueRead::Models, CatalogueRead::Account];

impl CodexAdapter {
    /// Asks for what can be listed; false: not now.
    pub(super) fn read_catalogue(&mut self, reads: &[CatalogueRead], out: &mut Translated) -> bool {
        let asks = |asked: &Asked| matches!(asked, Asked::Catalogue(_));
        if !self.ready() || self.asking().any(asks) {
            return false;
        }
        self.gathering = Catalogue::default();
        let bound = self.sessions.positions().filter(|at| self.sessions.is_bound(*at));
        let folders: Vec<String> = bound.map(|at| self.sessions.slot(at).context.cwd.clone()).collect();
        for read in reads.iter().copied() {
            let (method, params) = match read {
                CatalogueRead::Models => ("model/list", json!({ "includeHidden": true })),
                CatalogueRead::Account => ("account/read", json!({})),
                CatalogueRead::Limits => ("account/rateLimits/read", json!({})),
                CatalogueRead::Skills => ("skills/list", json!({ "cwds": folders })),
                CatalogueRead::McpServers => ("mcpServerStatus/list", json!({})),
            };
            self.read(Asked::Catalogue(read), method, params, out);
        }
        true
    }

    /// An answer; a refused read leaves its part absent. With the last one the catalogue is there to be taken.
    pub(super) fn catalogue_answered(&mut self, read: CatalogueRead, result: Result<Value, RpcError>) {
        let result = result.ok();
        let part = |name: &str| result.as_ref().and_then(|result| result.get(name)).cloned();
        match read {
            CatalogueRead::Models => {
                let models = part("data");
                self.gathering.models =
                    models.and_then(|models| Some(models.as_array()?.iter().filter_map(model).collect()));
            }
            CatalogueRead::Account => self.gathering.account = result,
            // Refused without a sign-in (measured); what came with the last turn then is what is known.
            CatalogueRead::Limits => {
                self.gathering.rate_limits =
                    part("rateLimits").or_else(|| self.connection.rate_limits.clone());
            }
            CatalogueRead::Skills => self.gathering.skills = part("data"),
            CatalogueRead::McpServers => self.gathering.mcp_servers = part("data"),
        }
        let asks = |asked: &Asked| matches!(asked, Asked::Catalogue(_));
        if !self.asking().any(asks) {
            if let Some(models) = &self.gathering.models {
                self.models.clone_from(models);
            }
            let told = self.gathered.take().unwrap_or_default();
            let mut gathered = std::mem::take(&mut self.gathering);
            gathered.rate_limits = gathered.rate_limits.or(told.rate_limits);
            self.gathered = Some(gathered);
        }
    }
}

/// Whether a model takes the effort and the tier that are wanted. The server checks neither (measured): it takes any word,
/// and the turns fail. A model that is not listed, or says nothing about them, is not judged.
pub(super) fn check_options(
    models: &[Model],
    model: Option<&String>,
    wanted: &SessionOptions,
) -> Result<(), Failure> {
    let Some(model) = model.and_then(|name| models.iter().find(|of| of.id == *name)) else { return Ok(()) };
    for (what, wanted, taken) in
        [("efforts", &wanted.effort, &model.efforts), ("tiers", &wanted.tier, &model.tiers)]
    {
        if let Some(wanted) = wanted
            && !taken.is_empty()
            && !taken.contains(wanted)
            && wanted != UNSET_TIER
        {
            let message = format!("{} takes the {what} {}, not {wanted:?}", model.id, taken.join(", "));
            return Err(Failure::new(FailureCode::AgentRefused, message));
        }
    }
    Ok(())
}

fn model(model: &Value) -> Option<Model> {
    let text = |name: &str| model.get(name).and_then(Value::as_str).map(str::to_owned);
    let flag = |name: &str| model.get(name).and_then(Value::as_bool).unwrap_or_default();
    let words = |name: &str, word: &str| {
        let list = model.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        list.iter().filter_map(|of| Some(of.get(word)?.as_str()?.to_owned())).collect()
    };
    let id = text("model").or_else(|| text("id"))?;
    Some(Model {
        name: text("displayName").unwrap_or_else(|| id.clone()),
        description: text("description").filter(|text| !text.is_empty()),
        hidden: flag("hidden"),
        default: flag("isDefault"),
        efforts: words("supportedReasoningEfforts", "reasoningEffort"),
        default_effort: text("defaultReasoningEffort"),
        tiers: words("serviceTiers", "id"),
        id,
    })
}
