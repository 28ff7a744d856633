//! `account`: who pays, for people: made, changed, frozen, topped up, deleted.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use voxgate::config::show_time;

use super::Failure;
use super::api::{AdminArgs, Api, path};
use super::told::{self, at};

/// What can be done with accounts.
#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Makes an account.
    #[command(
        after_help = "Example:\n  voxgate account add acme --cap 3600000 --period day --zone Europe/Berlin"
    )]
    Add {
        /// Its name: 1 to 64 of A-Z a-z 0-9 - _ .
        id: String,
        #[command(flatten)]
        terms: TermsArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Lists all accounts.
    #[command(after_help = "Example:\n  voxgate account list --json")]
    List {
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Shows one account and where its budget stands.
    #[command(after_help = "Example:\n  voxgate account show acme")]
    Show {
        /// Its name.
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Changes an account; what is not named stays.
    #[command(after_help = "Examples:\n  voxgate account set acme --cap 7200000\n  \
                            voxgate account set acme --frozen true")]
    Set {
        /// Its name.
        id: String,
        #[command(flatten)]
        terms: TermsArgs,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Refuses new streams of an account; live ones end within 10 s.
    #[command(after_help = "Example:\n  voxgate account freeze acme")]
    Freeze {
        /// Its name.
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Lets a frozen account open streams again.
    #[command(after_help = "Example:\n  voxgate account unfreeze acme")]
    Unfreeze {
        /// Its name.
        id: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Ends all streams of an account, then forgets it and its keys; its ledger
    /// stays to the end of its retention.
    #[command(after_help = "Example:\n  voxgate account delete acme --yes")]
    Delete {
        /// Its name.
        id: String,
        /// Do it; there is no way back.
        #[arg(long, env = "VOXGATE_YES")]
        yes: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Raises the cap of one period, once per id: asked again with the same id,
    /// it answers the same and adds nothing.
    #[command(after_help = "Examples:\n  voxgate account topup acme 600000 --id invoice-2231\n  \
                            voxgate account topup acme 600000")]
    Topup {
        /// Its name.
        account: String,
        /// How many units more.
        amount: u64,
        /// Names this top-up, so that it can be asked for again; without it one is
        /// made and printed.
        #[arg(long, env = "VOXGATE_TOPUP_ID", value_name = "ID")]
        id: Option<String>,
        /// The running period or the next one, such as d1764460800 [default: the
        /// running one].
        #[arg(long, env = "VOXGATE_TOPUP_PERIOD", value_name = "PERIOD")]
        period: Option<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// What an account may use.
#[derive(Debug, Args)]
pub(super) struct TermsArgs {
    /// Units per period; one is a millisecond of audio at the usual tariff.
    #[arg(long, env = "VOXGATE_ACCOUNT_CAP", value_name = "UNITS")]
    cap: Option<u64>,
    /// hour, day, month, or a fixed length such as 3600s.
    #[arg(long, env = "VOXGATE_ACCOUNT_PERIOD", value_name = "PERIOD")]
    period: Option<String>,
    /// Time zone of calendar periods.
    #[arg(long, env = "VOXGATE_ACCOUNT_ZONE", value_name = "ZONE")]
    zone: Option<String>,
    /// One session reserves at most 1/share of what is free.
    #[arg(long, env = "VOXGATE_ACCOUNT_SHARE", value_name = "N")]
    share: Option<u32>,
    /// Whether new streams are refused.
    #[arg(long, env = "VOXGATE_ACCOUNT_FROZEN", value_name = "BOOL")]
    frozen: Option<bool>,
}

impl TermsArgs {
    fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut add = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(name.to_owned(), value);
            }
        };
        add("cap", self.cap.map(Value::from));
        add("period", self.period.clone().map(Value::from));
        add("zone", self.zone.clone().map(Value::from));
        add("share", self.share.map(Value::from));
        add("frozen", self.frozen.map(Value::from));
        fields
    }
}

/// Runs an `account` command.
pub(super) fn account(command: &AccountCommand) -> Result<(), Failure> {
    match command {
        AccountCommand::Add { id, terms, admin } => {
            let mut fields = terms.fields();
            fields.insert("id".to_owned(), json!(id));
            tell_account(admin, &Api::new(admin)?.post("/v1/accounts", &Value::Object(fields))?);
        }
        AccountCommand::List { admin } => {
            let answer = Api::new(admin)?.get("/v1/accounts")?;
            if admin.json {
                told::json(&answer);
            } else {
                let names = ["id", "cap", "period", "zone", "share", "frozen"];
                told::list(at(&answer, "/accounts"), &names);
                tell_damaged(at(&answer, "/accounts"));
            }
        }
        AccountCommand::Show { id, admin } => {
            let api = Api::new(admin)?;
            let account = api.get(&path(id, &[]))?;
            let balance = api.get(&path(id, &["balance"]))?;
            if admin.json {
                told::json(&json!({ "account": account, "balance": balance }));
            } else {
                tell_account(admin, &account);
                told::pairs(&balance, &["ends_at", "cap", "taken", "held", "settled", "left", "drift"]);
            }
        }
        AccountCommand::Set { id, terms, admin } => {
            let fields = terms.fields();
            if fields.is_empty() {
                return Err(Failure::new(
                    2,
                    "nothing to change; name --cap, --period, --zone, --share or --frozen",
                ));
            }
            tell_account(admin, &Api::new(admin)?.patch(&path(id, &[]), &Value::Object(fields))?);
        }
        AccountCommand::Freeze { id, admin } => freeze(id, true, admin)?,
        AccountCommand::Unfreeze { id, admin } => freeze(id, false, admin)?,
        AccountCommand::Delete { id, yes, admin } => delete(id, *yes, admin)?,
        AccountCommand::Topup { account, amount, id, period, admin } => {
            topup(account, *amount, (id.as_deref(), period.as_deref()), admin)?;
        }
    }
    Ok(())
}

fn freeze(id: &str, frozen: bool, admin: &AdminArgs) -> Result<(), Failure> {
    let answer = Api::new(admin)?.patch(&path(id, &[]), &json!({ "frozen": frozen }))?;
    tell_account(admin, &answer);
    Ok(())
}

fn delete(id: &str, yes: bool, admin: &AdminArgs) -> Result<(), Failure> {
    if !yes {
        let text =
            "this ends all streams of the account and forgets its keys; say --yes, or freeze it instead";
        return Err(Failure::new(2, text));
    }
    let answer = Api::patient(admin)?.delete(&path(id, &[]))?;
    if admin.json {
        told::json(&answer);
    } else {
        told::pairs(&answer, &["closed", "charged"]);
        eprintln!("Deleted. Its ledger can still be exported.");
    }
    Ok(())
}

fn topup(
    account: &str,
    amount: u64,
    (id, period): (Option<&str>, Option<&str>),
    admin: &AdminArgs,
) -> Result<(), Failure> {
    let id = id.map_or_else(|| uuid::Uuid::new_v4().simple().to_string(), str::to_owned);
    // Said before it is sent: whoever gets no answer can repeat it.
    eprintln!("Top-up {}; asked again with --id and the same amount it adds nothing.", told::plain(&id));
    let mut body = Map::new();
    body.insert("id".to_owned(), json!(id));
    body.insert("amount".to_owned(), json!(amount));
    if let Some(period) = period {
        body.insert("period".to_owned(), json!(period));
    }
    let answer = Api::new(admin)?.post(&path(account, &["topups"]), &Value::Object(body))?;
    if admin.json {
        told::json(&answer);
    } else {
        told::pairs(&answer, &["id", "amount", "period", "sum"]);
    }
    Ok(())
}

fn tell_damaged(accounts: &Value) {
    let damaged = accounts.as_array().into_iter().flatten().filter(|account| at(account, "/damaged") == true);
    for account in damaged {
        let id = told::plain(at(account, "/id").as_str().unwrap_or_default());
        eprintln!("{id}: its record in the store is damaged; the server's log names the key");
    }
}

fn tell_account(admin: &AdminArgs, account: &Value) {
    if admin.json {
        told::json(account);
        return;
    }
    told::pairs(account, &["id", "cap", "period", "zone", "share", "frozen"]);
    if let Some(when) = at(account, "/changes_at").as_str() {
        eprintln!("Period and zone count from {}, when the running period ends.", told::plain(when));
    }
    let cap = std::time::Duration::from_millis(at(account, "/cap").as_u64().unwrap_or(0));
    eprintln!("At 1000 units per second the cap is {} of audio.", show_time(cap));
}
