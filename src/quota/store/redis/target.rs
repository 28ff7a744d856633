//! A store URL, read: which servers, in what arrangement, with which login. Pure.
//!
//! | URL | arrangement |
//! |---|---|
//! | `redis://[user:password@]host[:port][/db]` | one primary |
//! | `redis+sentinel://[user:password@]host[:port][,host[:port]…]/NAME[/db]` | the primary that sentinels call NAME |
//! | `redis+cluster://[user:password@]host[:port][,host[:port]…]` | a cluster, found through any of its nodes |
//!
//! `rediss…` for `redis…` is the same over TLS. User and password are percent-encoded, and are the data servers';
//! sentinels have theirs in the query: `?sentinel_user=…&sentinel_password=…`.

use std::fmt;

use percent_encoding::percent_decode_str;

/// Where a store is, and how to get in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// How the servers hang together.
    pub form: Form,
    /// Servers to begin with: the one, the sentinels, or nodes of the cluster. At least one.
    pub seeds: Vec<Address>,
    /// For the servers that hold data.
    pub login: Login,
    /// For sentinels.
    pub sentinel_login: Login,
    /// Number of the database; 0 in a cluster.
    pub database: u32,
    /// Whether connections are TLS.
    pub tls: bool,
}

/// How the servers of a store hang together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// One server, the primary.
    Single,
    /// Sentinels know which server is the primary of this name.
    Sentinel {
        /// The name that sentinels monitor it by.
        name: String,
    },
    /// Hash slots are spread over primaries.
    Cluster,
}

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Address {
    /// Reads `host`, `host:port` or `[v6]:port`.
    fn parse(text: &str, default_port: u16) -> Result<Self, &'static str> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or("an IPv6 address has no closing bracket")?;
                (host, port.strip_prefix(':'))
            }
            None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() {
            return Err("the URL has no host");
        }
        let port = port.map_or(Ok(default_port), str::parse);
        match port.map_err(|_| "a port is not a number from 1 to 65535")? {
            0 => Err("a port is not a number from 1 to 65535"),
            port => Ok(Self { host: host.to_owned(), port }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// User and password. Never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// ACL user; the server's `default` when `None`.
    pub user: Option<String>,
    /// Nothing is sent when `None`.
    pub password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Target {
    /// Reads a URL; the error says what is wrong and never repeats the URL, since it may hold a password.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        if url.bytes().any(|b| b.is_ascii_whitespace() || b.is_ascii_control()) {
            return Err("the URL holds a space or a control character");
        }
        let (scheme, rest) = url.split_once("://").ok_or(SCHEMES)?;
        let (tls, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            ("redis", kind) => (false, kind),
            ("rediss", kind) => (true, kind),
            _ => return Err(SCHEMES),
        };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (login, rest) = match rest.rsplit_once('@') {
            Some((login, rest)) => (read_login(login)?, rest),
            None => (Login::default(), rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (form, database) = read_form(kind, path)?;
        let port = if matches!(form, Form::Sentinel { .. }) { SENTINEL_PORT } else { PORT };
        let seeds = hosts.split(',').map(|host| Address::parse(host, port)).collect::<Result<Vec<_>, _>>()?;
        if form == Form::Single && seeds.len() > 1 {
            return Err("several hosts need redis+sentinel:// or redis+cluster://");
        }
        let sentinel_login = read_query(query, &form)?;
        Ok(Self { form, seeds, login, sentinel_login, database, tls })
    }

    /// What the arrangement is called: for logs and tables.
    pub const fn word(&self) -> &'static str {
        match self.form {
            Form::Single => "standalone",
            Form::Sentinel { .. } => "sentinel",
            Form::Cluster => "cluster",
        }
    }
}

fn read_form(kind: &str, path: &str) -> Result<(Form, u32), &'static str> {
    let database = |text: &str| match text {
        "" => Ok(0),
        digits => digits.parse().map_err(|_| "the database is not a number"),
    };
    match kind {
        "" => Ok((Form::Single, database(path)?)),
        "sentinel" => {
            let (name, number) = path.split_once('/').unwrap_or((path, ""));
            if name.is_empty() {
                return Err("redis+sentinel:// needs the primary's name behind the hosts, such as /mymaster");
            }
            Ok((Form::Sentinel { name: name.to_owned() }, database(number)?))
        }
        "cluster" if matches!(path, "" | "0") => Ok((Form::Cluster, 0)),
        "cluster" => Err("a cluster has no databases to choose from; leave the path out"),
        _ => Err(SCHEMES),
    }
}

fn read_login(text: &str) -> Result<Login, &'static str> {
    let (user, password) = text.split_once(':').ok_or("a login is user:password, or :password")?;
    let plain = |text: &str| {
        let text = percent_decode_str(text).decode_utf8();
        text.map(|text| (!text.is_empty()).then(|| text.into_owned()))
            .map_err(|_| "the login is not percent-encoded UTF-8")
    };
    Ok(Login { user: plain(user)?, password: plain(password)? })
}

fn read_query(query: Option<&str>, form: &Form) -> Result<Login, &'static str> {
    let mut login = Login::default();
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match (name.as_ref(), form) {
            ("sentinel_user", Form::Sentinel { .. }) => login.user = Some(value.into_owned()),
            ("sentinel_password", Form::Sentinel { .. }) => login.password = Some(value.into_owned()),
            _ => return Err("the URL's query knows sentinel_user and sentinel_password, for sentinels only"),
        }
    }
    Ok(login)
}

const SCHEMES: &str = "neither `embedded`, `embedded:DIRECTORY` nor a redis://, rediss://, redis+sentinel:// or \
                       redis+cluster:// URL";
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

#[cfg(test)]
mod tests {
    use super::{Address, Form, Target};

    fn parse(url: &str) -> Target {
        Target::parse(url).unwrap_or_else(|why| panic!("{url}: {why}"))
    }

    fn hosts(target: &Target) -> Vec<String> {
        target.seeds.iter().map(Address::to_string).collect()
    }

    #[test]
    fn every_arrangement_is_read() {
        let one = parse("redis://localhost");
        assert_eq!(
            (one.form.clone(), hosts(&one), one.database),
            (Form::Single, vec!["localhost:6379".into()], 0)
        );
        let one = parse("rediss://me:p%40ss@[::1]:7000/3");
        assert_eq!((one.tls, hosts(&one), one.database), (true, vec!["[::1]:7000".into()], 3));
        assert_eq!((one.login.user.as_deref(), one.login.password.as_deref()), (Some("me"), Some("p@ss")));
        let sentinels = parse("redis+sentinel://:secret@a,b:1/main/2?sentinel_password=other");
        assert_eq!(sentinels.form, Form::Sentinel { name: "main".into() });
        assert_eq!((hosts(&sentinels), sentinels.database), (vec!["a:26379".into(), "b:1".into()], 2));
        assert_eq!(sentinels.login.user, None);
        assert_eq!(sentinels.sentinel_login.password.as_deref(), Some("other"));
        let cluster = parse("rediss+cluster://a:1,b:2,c:3");
        assert_eq!((cluster.form.clone(), cluster.tls, cluster.seeds.len()), (Form::Cluster, true, 3));
    }

    #[test]
    fn faulty_urls_are_told_apart() {
        for (url, part) in [
            ("http://h", "redis+cluster"),
            ("redis+what://h", "redis+cluster"),
            ("redis://", "no host"),
            ("redis://:1", "no host"),
            ("redis://h:0", "port"),
            ("redis://h:99999", "port"),
            ("redis://h/x", "not a number"),
            ("redis://a,b", "several hosts"),
            ("redis+sentinel://h", "name"),
            ("redis+cluster://h/1", "no databases"),
            ("redis://h?timeout=1", "sentinels only"),
            ("redis://me@h", "user:password"),
            ("redis://h h", "space"),
            ("redis://[::1", "bracket"),
        ] {
            let why = Target::parse(url).expect_err(url);
            assert!(why.contains(part), "{url}: {why}");
        }
    }

    #[test]
    fn logins_are_never_shown() {
        let text = format!("{:?}", parse("redis+sentinel://canary:canary@h/m?sentinel_password=canary"));
        assert!(!text.contains("canary"), "{text}");
    }
}
