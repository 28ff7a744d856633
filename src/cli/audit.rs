//! `audit`: whether the books agree, for people, and a budget written anew.

use clap::Subcommand;
use serde_json::{Value, json};

use super::Failure;
use super::api::{AdminArgs, Api, path};
use super::told::{self, at};

/// What can be asked of the books.
#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Shows the books of an account, or the totals of all active ones.
    #[command(after_help = "Examples:\n  voxgate audit show\n  voxgate audit show acme")]
    Show {
        /// Whose books [default: all active accounts].
        account: Option<String>,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Counts every ledger row and open lease and compares; exit code 1 when
    /// something differs.
    #[command(after_help = "Example:\n  voxgate audit deep acme")]
    Deep {
        /// Whose books.
        account: String,
        #[command(flatten)]
        admin: AdminArgs,
    },
    /// Writes a lost budget anew from its ledger and open leases.
    #[command(after_help = "Examples:\n  voxgate audit rebuild acme d1764460800\n  \
                            voxgate audit rebuild acme d1764460800 --force")]
    Rebuild {
        /// Whose budget.
        account: String,
        /// Which period, as `audit show` names it.
        period: String,
        /// Also when there is a budget that says something else.
        #[arg(long, env = "VOXGATE_FORCE")]
        force: bool,
        #[command(flatten)]
        admin: AdminArgs,
    },
}

/// Runs an `audit` command.
pub(super) fn run(command: &AuditCommand) -> Result<(), Failure> {
    match command {
        AuditCommand::Show { account: None, admin } => {
            let answer = Api::patient(admin)?.get("/v1/audit")?;
            tell(admin, &answer, &["accounts", "drift", "tolerance", "lost"]);
        }
        AuditCommand::Show { account: Some(account), admin } => {
            let answer = Api::patient(admin)?.get(&path(account, &["audit"]))?;
            tell(admin, &answer, &["account", "drift", "tolerance", "now"]);
            if !admin.json {
                let names = ["period", "taken", "held", "settled", "rows", "drift", "open_leases", "lost"];
                told::list(at(&answer, "/periods"), &names);
            }
        }
        AuditCommand::Deep { account, admin } => return deep(account, admin),
        AuditCommand::Rebuild { account, period, force, admin } => {
            let body = json!({ "period": period, "force": force });
            let answer = Api::patient(admin)?.post(&path(account, &["audit", "rebuild"]), &body)?;
            if admin.json {
                told::json(&answer);
            } else if at(&answer, "/written") == true {
                told::pairs(at(&answer, "/now"), &["taken", "held", "settled", "rows"]);
                tell_mismatches("was", at(&answer, "/was"));
            } else {
                eprintln!("The budget is there and agrees; nothing was written.");
            }
        }
    }
    Ok(())
}

fn deep(account: &str, admin: &AdminArgs) -> Result<(), Failure> {
    let answer = Api::patient(admin)?.get(&format!("{}?deep=1", path(account, &["audit"])))?;
    if admin.json {
        told::json(&answer);
    } else {
        told::list(
            at(&answer, "/periods"),
            &["period", "rows", "charged", "excess", "open_leases", "open_units"],
        );
        for period in at(&answer, "/periods").as_array().into_iter().flatten() {
            let name = told::plain(at(period, "/period").as_str().unwrap_or_default());
            tell_mismatches(&name, at(period, "/mismatches"));
        }
    }
    if at(&answer, "/agrees") == true {
        return Ok(());
    }
    Err(Failure::failed("the books differ; `voxgate audit rebuild` writes a budget anew from its ledger"))
}

fn tell_mismatches(head: &str, list: &Value) {
    for mismatch in list.as_array().into_iter().flatten() {
        let field = told::plain(at(mismatch, "/field").as_str().unwrap_or_default());
        eprintln!("{head}: {field} says {}, counted {}", at(mismatch, "/says"), at(mismatch, "/counted"));
    }
}

fn tell(admin: &AdminArgs, answer: &Value, names: &[&str]) {
    if admin.json {
        told::json(answer);
        return;
    }
    told::pairs(answer, names);
    told::pairs(at(answer, "/outstanding"), &["leases", "units", "oldest_ms", "quarantined"]);
}
