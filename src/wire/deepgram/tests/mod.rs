//! What the dialect must always get right, one file per side of the handshake.

mod handshake;
mod messages;

/// The seed of a random test, printed so that a failure can be replayed with `VOX_SEED`.
fn random(test: &str) -> fastrand::Rng {
    let given = std::env::var("VOX_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("{test}: VOX_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Words glued together from a dictionary and from chance.
fn babble(random: &mut fastrand::Rng, words: &[&str]) -> String {
    let mut text = String::new();
    for _ in 0..random.usize(0..24) {
        match random.usize(0..10) {
            0 => text.push(random.char(..)),
            1 => text.push_str(&random.u64(..).to_string()),
            _ => text.push_str(random.choice(words).copied().unwrap_or_default()),
        }
    }
    text
}
