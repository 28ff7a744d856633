//! Who may talk to the store: certificates, users, passwords; and which servers are no store at all.

use std::collections::BTreeSet;
use std::fs::read;
use std::path::{Path, PathBuf};
use std::process::Command;

use voxgate::ending::Ending;
use voxgate::quota::permissions::NEEDED;
use voxgate::quota::script;
use voxgate::quota::store::redis::Options;
use voxgate::quota::store::{Store, StoreError};
use voxgate::quota::{Account, PeriodRule};

use super::crowd::Stage;
use super::flow::{whole_flow, whole_flow_of};
use super::shapes::{CAP, Till};
use crate::harness::audio::noise_ms;
use crate::harness::certificates::Certificates;
use crate::harness::client::LINEAR16;
use crate::harness::cluster::Cluster;
use crate::harness::polled;
use crate::harness::proxy::Proxy;
use crate::harness::redis_server::{Place, RedisServer, redis, store_binaries};
use crate::harness::sentinel::Sentinel;
use crate::money::house::{a_key, name, units};

/// The user file that is shipped.
const ACL: &str = include_str!("../../deploy/voxgate.acl");

/// The shipped user's rules, with `pass` for a password.
pub fn rules() -> Vec<String> {
    let line = ACL.trim_end().strip_prefix("user voxgate ").expect("one user");
    line.replace("PASSWORD", "pass").split(' ').map(str::to_owned).collect()
}

/// What the program says about a store, and the code it ends with.
fn checked(url: &str, more: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_voxgate"));
    let out = command.args(["check", "--store", url]).args(more).output().expect("the program runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code(), text)
}

/// Why a store can't be used, in its own words.
async fn refusal(url: &str, options: &Options) -> String {
    let store = Store::open_with(url, options).expect("a valid URL");
    match store.command(&["GET", "vox:schema"]).await {
        Err(error) => error.to_string(),
        Ok(reply) => panic!("{url} answered {reply:?}"),
    }
}

/// The kinds of server that speak TLS; Valkey's package is built without.
fn tls_binaries() -> Vec<PathBuf> {
    let speaks = |binary: &PathBuf| !binary.ends_with("valkey-server");
    store_binaries().into_iter().filter(speaks).collect()
}

fn options(certificates: &Certificates, client: bool) -> Options {
    let file = |name: &str| read(certificates.file(name)).expect("a file");
    let certificate = client.then(|| (file("client.pem"), file("client.key")));
    Options { authorities: Some(file("authority.pem")), certificate, ..Options::default() }
}

fn with_tls(binary: &Path, certificates: &Certificates, clients: &str) -> RedisServer {
    RedisServer::start_at(binary, |place: &Place| {
        let port = ["--tls-port".to_owned(), place.second_port.to_string()];
        [&port[..], &certificates.server_arguments(clients)].concat()
    })
}

/// With the authority that signed the server, and a certificate where one is asked for, all goes; without, nothing does,
/// and the error says why.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_open_the_store() {
    let (certificates, others) = (Certificates::make(), Certificates::make());
    for binary in tls_binaries() {
        for (clients, shown) in [("no", false), ("yes", true)] {
            let server = with_tls(&binary, &certificates, clients);
            let url = format!("rediss://127.0.0.1:{}", server.second_port);
            whole_flow_of(&Till::with(&url, &options(&certificates, shown), "acme").await).await;
            for wrong in [options(&others, shown), Options::default()] {
                let why = refusal(&url, &wrong).await;
                assert!(why.contains("certificate"), "on {server}: {why}");
            }
            if shown {
                let why = refusal(&url, &options(&certificates, false)).await;
                assert!(why.to_lowercase().contains("certificate"), "on {server}: {why}");
            }
            let why =
                refusal(&format!("rediss://127.0.0.1:{}", server.port), &options(&certificates, shown)).await;
            assert!(why.contains("not serving"), "on {server}: {why}");
            let why =
                refusal(&format!("redis://127.0.0.1:{}", server.second_port), &Options::default()).await;
            assert!(why.contains("rediss://"), "on {server}: {why}");
        }
    }
}

/// Sentinels, a cluster and a gateway's settings over TLS.
#[tokio::test(flavor = "multi_thread")]
async fn tls_reaches_every_arrangement() {
    let certificates = Certificates::make();
    let arguments = certificates.server_arguments("yes");
    let trusted = options(&certificates, true);
    let primary = with_tls(&redis(), &certificates, "yes");
    let watched = Sentinel::over_tls(&redis(), primary, &arguments);
    whole_flow_of(&Till::with(&watched.url(), &trusted, "acme").await).await;
    let cluster = Cluster::one_over_tls(&redis(), &arguments).await;
    whole_flow_of(&Till::with(cluster.url(), &trusted, "acme").await).await;

    for url in [&watched.url(), cluster.url()] {
        let stage = Stage::with(url, &certificates.store_settings(true), "").await;
        let key = stage.account("a").await;
        let mut client = stage.gateway.open(LINEAR16, &key).await.expect("budget");
        assert!(client.audio(&noise_ms(1, 700)).await);
        assert_eq!(client.finish().await.metadata_ms(), 700, "on {url}");
    }
}

/// A server that knows the shipped user, from the shipped file.
fn guarded(binary: &Path) -> RedisServer {
    RedisServer::start_at(binary, |place| {
        let file = place.folder.join("users.acl");
        std::fs::write(&file, ACL.replace("PASSWORD", "pass")).expect("a writable folder");
        vec!["--aclfile".to_owned(), file.display().to_string()]
    })
}

/// `URL` with the shipped user in it.
fn as_user(server: &RedisServer) -> String {
    format!("redis://voxgate:pass@127.0.0.1:{}", server.port)
}

/// Streams of an account whose period turns each second, until one was the first of its period.
async fn turn_periods(till: &Till, server: &RedisServer) {
    let mut account = Account::new(name("brief"), units(CAP));
    account.period = PeriodRule::Fixed(1);
    till.quota.put_account(&account).await.expect("written");
    let key = till.quota.add_key(a_key(&account.id)).await.expect("written").1;
    let brief = till.of(account.id, key);
    polled("a period's first stream", async || {
        let lease = brief.open("s").await.expect("budget");
        lease.settle(Ending::ClientDone, "w").await;
        (server.calls("hdel").await > 0).then_some(())
    })
    .await;
}

/// The shipped user may do all that is needed, with replicas waited for as well, and nothing that is not.
#[tokio::test(flavor = "multi_thread")]
async fn shipped_user_may_do_what_is_needed() {
    for binary in store_binaries() {
        let server = guarded(&binary);
        let replica = RedisServer::start(&binary, &["--replicaof", &format!("127.0.0.1 {}", server.port)]);
        polled("a replica", async || {
            (replica.info("replication", "master_link_status").await? == "up").then_some(())
        })
        .await;
        polled("its acknowledgements", async || {
            // It is online with its first acknowledgement, up to a second after it calls its link up.
            server.info("replication", "slave0").await?.contains("state=online").then_some(())
        })
        .await;
        let patient = Options { wait_replicas: 1, ..Options::default() };
        let till = Till::with(&as_user(&server), &patient, "acme").await;
        whole_flow_of(&till).await;
        turn_periods(&till, &server).await;
        let stage = Stage::on(&as_user(&server), "").await;
        let key = stage.account("a").await;
        let mut client = stage.gateway.open(LINEAR16, &key).await.expect("budget");
        assert!(client.audio(&noise_ms(1, 700)).await);
        assert_eq!(client.finish().await.metadata_ms(), 700);
        let (code, said) = checked(&as_user(&server), &[]);
        assert!(code.is_some_and(|code| code < 2), "{code:?}: {said}");

        let denied = server.tell::<String>(&["INFO", "errorstats"]).await;
        assert!(!denied.contains("NOPERM"), "on {server}: {denied}");
        let stats = server.tell::<String>(&["INFO", "commandstats"]).await;
        let used = |command: &str| stats.contains(&format!("cmdstat_{command}:"));
        let optional = ["info", "slowlog|get", "cluster|info"];
        let elsewhere = ["evalsha", "script|load", "role", "wait", "asking", "cluster|slots"];
        let asked: BTreeSet<_> =
            NEEDED.into_iter().chain(elsewhere).chain(optional).map(str::to_owned).collect();
        let allowed = rules().into_iter().filter_map(|rule| Some(rule.strip_prefix('+')?.to_owned()));
        assert_eq!(asked, allowed.collect(), "what is asked for at the start is what is allowed");
        let idle: Vec<_> = asked.iter().filter(|command| !used(command)).map(String::as_str).collect();
        // Only a cluster needs these; there `moving_slots_disturb_no_stream` is this user.
        assert_eq!(idle, ["asking", "cluster|slots"], "on {server}: allowed, and never used");
    }
}

/// A user that lacks one command, or the keys, is told about at the start and by every call: as a fault of the
/// configuration that names what is missing, never as a doubt.
#[tokio::test(flavor = "multi_thread")]
async fn missing_permission_is_named() {
    for binary in store_binaries() {
        let server = guarded(&binary);
        let store = Store::open(&as_user(&server)).expect("a valid URL");
        server.tell::<()>(&["SET", "vox:quota:{a}:s:1", "100"]).await;
        let admit = async || store.run(&script::ADMIT, &["vox:quota:{a}:s:1"], &["5"]).await;
        admit().await.expect("a grant");
        for command in ["evalsha", "decrby", "get", "xadd"] {
            server.tell::<()>(&["ACL", "SETUSER", "voxgate", &format!("-{command}")]).await;
            if command != "xadd" {
                let error = admit().await.expect_err("denied");
                assert!(matches!(error, StoreError::Denied(_)), "on {server} without {command}: {error:?}");
            }
            let (code, said) = checked(&as_user(&server), &[]);
            assert!(
                code != Some(0) && said.to_lowercase().contains(command),
                "on {server}, {command}: {said}"
            );
            server.tell::<()>(&["ACL", "SETUSER", "voxgate", &format!("+{command}")]).await;
        }
        server.tell::<()>(&["ACL", "SETUSER", "voxgate", "resetkeys", "~other:*"]).await;
        let error = admit().await.expect_err("denied");
        assert!(matches!(error, StoreError::Denied(_)), "on {server} without keys: {error:?}");
        assert_eq!(server.tell::<String>(&["GET", "vox:quota:{a}:s:1"]).await, "95", "nothing was taken");
    }
}

/// A password that changes disturbs no open connection; a lost one then shows as a fault of the configuration, until
/// the old password holds again.
#[tokio::test(flavor = "multi_thread")]
async fn changed_password_shows_as_such() {
    let server = guarded(&redis());
    let proxy = Proxy::to(([127, 0, 0, 1], server.port).into()).await;
    let stage = Stage::on(&format!("redis://voxgate:pass@{}", proxy.address()), "").await;
    let key = stage.account("a").await;
    let crowd = stage.crowd(&key, 3, 2000).await;
    server.tell::<()>(&["ACL", "SETUSER", "voxgate", "resetpass", ">new"]).await;
    assert!(crowd.over().await.whole, "open connections go on");

    proxy.reset_all();
    polled("a red readiness", async || (stage.gateway.status("/readyz").await == 503).then_some(())).await;
    assert_eq!(stage.gateway.open(LINEAR16, &key).await.err().map(|refusal| refusal.status), Some(503));
    let (code, said) = checked(&as_user(&server), &[]);
    assert!(code != Some(0) && said.contains("WRONGPASS"), "{said}");
    assert!(!said.contains("pass@"), "{said}");

    server.tell::<()>(&["ACL", "SETUSER", "voxgate", ">pass"]).await;
    polled("a green readiness", async || (stage.gateway.status("/readyz").await == 200).then_some(())).await;
    let mut client = stage.gateway.open(LINEAR16, &key).await.expect("budget");
    assert!(client.audio(&noise_ms(1, 700)).await);
    assert_eq!(client.finish().await.metadata_ms(), 700);
}

/// Sentinels with a login of their own, and data nodes with another.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_have_their_own_login() {
    let data = guarded(&redis());
    let watched = Sentinel::watching(&redis(), vec![data]);
    let rules = ["ACL", "SETUSER", "asker", "on", ">word", "-@all", "+sentinel|get-master-addr-by-name"];
    watched.sentinels[0].tell::<()>(&rules).await;
    watched.sentinels[0].tell::<()>(&["ACL", "SETUSER", "default", "off"]).await;
    let query = "?sentinel_user=asker&sentinel_password=word";
    whole_flow(&watched.url_as("voxgate:pass", query), "acme").await;
    let why = refusal(&watched.url_as("voxgate:pass", ""), &Options::default()).await;
    assert!(why.contains("sentinel"), "{why}");
    let why = refusal(&watched.url_as("voxgate:wrong", query), &Options::default()).await;
    assert!(why.contains("WRONGPASS"), "{why}");
}

/// A replica is no store: `check` and `serve` refuse it, and no call is answered by it.
#[tokio::test(flavor = "multi_thread")]
async fn replica_alone_is_refused() {
    for binary in store_binaries() {
        let primary = RedisServer::start(&binary, &[]);
        let replica = RedisServer::start(&binary, &["--replicaof", &format!("127.0.0.1 {}", primary.port)]);
        let why = refusal(&replica.url(), &Options::default()).await;
        assert!(why.contains("is not a primary"), "{why}");
        let (code, said) = checked(&replica.url(), &[]);
        assert!(code != Some(0) && said.contains("is not a primary"), "{code:?}: {said}");
        let mut serve = Command::new(env!("CARGO_BIN_EXE_voxgate"));
        let out = serve.args(["serve", "--store", &replica.url(), "--worker", "ws://127.0.0.1:9"]).output();
        let out = out.expect("the program runs");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains("is not a primary"), "{:?}: {said}", out.status);
    }
}
