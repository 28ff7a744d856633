//! From the configuration to what each room wants to know. The rooms know nothing of a configuration.

use voxgate::config::Config;
use voxgate::units::Units;
use voxgate::{gateway, quota};

/// Price of one second of audio of a model without a tariff: one unit is one millisecond.
const UNITS_PER_SECOND: u32 = 1000;

/// What the money room wants to know.
pub(super) fn quota_settings(config: &Config) -> quota::Settings {
    quota::Settings {
        prefix: config.store.prefix.clone(),
        envelope_first: config.quota.envelope_first,
        envelope_longest: config.quota.envelope_longest,
        floor: config.quota.floor,
        epsilon: Units::saturating(config.quota.tolerance),
        retention: config.quota.retention,
        ..quota::Settings::default()
    }
}

/// What the gateway room wants to know.
pub(super) fn gateway_settings(config: &Config) -> gateway::Settings {
    let secrets = config.tokens.iter().map(|secret| secret.expose().to_owned()).collect();
    gateway::Settings {
        listen: config.listen.address,
        connections_max: usize::try_from(config.limits.streams_max).unwrap_or(usize::MAX),
        connections_per_address_max: usize::try_from(config.limits.per_address).unwrap_or(usize::MAX),
        origins: config.listen.origins.clone(),
        client_idle: config.limits.idle,
        stream_longest: config.limits.session_longest,
        held_bytes_max: config.limits.held_bytes,
        units_per_second: UNITS_PER_SECOND,
        prices: config.models.iter().map(|(model, price)| (model.clone(), *price)).collect(),
        token_secrets: gateway::TokenSecrets::new(secrets).expect("the configuration checked their bounds"),
        ..gateway::Settings::default()
    }
}
