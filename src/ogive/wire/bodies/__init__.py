"""JSON bodies: records with ``to_json`` (plain values for json.dumps, Java's key names) and
``from_json`` (raises ProtocolError).

Source: remoting/protocol/body, route, heartbeat, subscription, 5.3. Readers ignore unknown members
and use defaults for absent ones.
"""
