"""HTTP bodies of `/api/v1`, shared by the service and its clients.

Answers may gain fields: a client ignores those that it does not know. Requests by people refuse unknown fields;
reports, which agents of other versions send, ignore them.
"""
